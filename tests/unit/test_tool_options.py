"""Every option of fairseq-generate reaches every tool that takes it, or is refused: none is taken and ignored."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import GenerationConfig

from fairseq_aggdec.api import session as sessions
from fairseq_aggdec.bench import engines, systems
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.cli import bench
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from scripts import random_models
from tests.random_models import make_model, make_task

# What a command line says -> what must arrive: name of an option -> value.
GENERATION: dict[str, Any] = {
    "max_len_a": 0.5,
    "max_len_b": 9,
    "min_len": 2,
    "match_source_len": True,
    "unnormalized": True,
    "no_early_stop": True,
    "lenpen": 2.0,
    "unkpen": 3.0,
    "prefix_size": 1,
    "no_repeat_ngram_size": 2,
    "sampling": True,
    "sampling_topk": 3,
    "sampling_topp": 0.5,
    "temperature": 2.0,
    "diverse_beam_groups": 1,
    "diverse_beam_strength": 0.25,
    "diversity_rate": 0.5,
    "print_alignment": "soft",
    "retain_iter_history": True,
    "retain_dropout": True,
    "lm_path": "lm.pt",
    "lm_weight": 0.5,
}
TASK = {
    "acceptance": "top-beta:4:0.5",
    "variant": "iad-match=unique",
    "int8": "all",
    "draft_tokens": "4",
}
LOADING = {
    "model_overrides": "{'dropout': 0.25}",
    "checkpoint_suffix": "-x",
    "checkpoint_shard_count": 2,
    "seed": 7,
    "fp16": True,
    "max_tokens": 99,
    "gen_subset": random_models.SPLIT,
    "skip_invalid_size_inputs_valid_test": True,
    "post_process": "subword_nmt",
    "tokenizer": "space",
    "bpe": "sentencepiece",
}
PIECES = (
    f"--sentencepiece-model={Path(__file__).resolve().parents[2] / 'checkpoints/ua_gec/spm.model'}"
)
# Everybody takes them: a tool's own options, for its first run of a search.
OWN = {
    "audit": ["--decoding", "greedy"],
    "bench": ["--systems", "greedy"],
    "bench by options": ["--system", "a=", "--output", "{tmp}/out"],
    "bench apart": ["--systems", "greedy", "--apart"],
    "trace": ["--decoding", "iad", "--report", "{tmp}/page.html"],
    "scripts.recipes.gad.crossing": ["--drafters", "{model}", "--output", "{tmp}/out"],
    "scripts.recipes.lattice.figures": ["--output", "{tmp}/out"],
    "scripts.recipes.interleaved.figures": ["--model", "a={model}", "--output", "{tmp}/out"],
    "scripts.recipes.blockwise.table": ["--models", "a/1={model}", "--output", "{tmp}/out"],
}
# Options of training, of logging and of how data are read, which change no output of fairseq-generate either; those of
# other tasks' generators; and the names of what is loaded.
OTHERS = """
    help no_progress_bar log_interval log_format log_file aim_repo aim_run_hash tensorboard_logdir wandb_project
    azureml_logging cpu tpu bf16 memory_efficient_bf16 memory_efficient_fp16 fp16_no_flatten_grads fp16_init_scale
    fp16_scale_window fp16_scale_tolerance on_cpu_convert_precision min_loss_scale threshold_loss_scale amp
    amp_batch_retries amp_init_scale amp_scale_window user_dir empty_cache_freq all_gather_list_size
    model_parallel_size quantization_config_path profile reset_logging suppress_crashes use_plasma_view plasma_path
    criterion optimizer lr_scheduler task num_workers required_batch_size_multiple required_seq_len_multiple
    dataset_impl data_buffer_size train_subset valid_subset combine_valid_subsets ignore_unused_valid_subsets
    validate_interval validate_interval_updates validate_after_updates fixed_validation_seed disable_validation
    max_tokens_valid batch_size_valid max_valid_steps curriculum grouped_shuffling update_epoch_batch_itr
    update_ordered_indices_seed distributed_num_procs distributed_backend distributed_init_method distributed_port
    device_id distributed_no_spawn ddp_backend ddp_comm_hook bucket_cap_mb fix_batches_to_gpus find_unused_parameters
    gradient_as_bucket_view fast_stat_sync heartbeat_timeout broadcast_buffers slowmo_momentum slowmo_base_algorithm
    localsgd_frequency nprocs_per_node pipeline_balance pipeline_devices pipeline_chunks pipeline_encoder_balance
    pipeline_encoder_devices pipeline_decoder_balance pipeline_decoder_devices pipeline_checkpoint zero_sharding
    no_reshard_after_forward fp32_reduce_scatter cpu_offload use_sharded_state not_fsdp_flatten_parameters path quiet
    beam_mt max_len_a_mt max_len_b_mt lenpen_mt no_beamable_mm sacrebleu iter_decode_eos_penalty iter_decode_max_iter
    iter_decode_force_max_iter iter_decode_with_beam iter_decode_with_external_reranker retain_dropout_modules
    decoding_format no_seed_provided eos_token save_dir restore_file continue_once finetune_from_model
    reset_dataloader reset_lr_scheduler reset_meters reset_optimizer optimizer_overrides save_interval
    save_interval_updates keep_interval_updates keep_interval_updates_pattern keep_last_epochs keep_best_checkpoints
    no_save no_epoch_checkpoints no_last_checkpoints no_save_optimizer_state best_checkpoint_metric
    maximize_best_checkpoint_metric patience load_checkpoint_on_all_dp_ranks write_checkpoints_asynchronously
"""
ELSEWHERE = set(OTHERS.split())


class ArrivedError(Exception):
    """A generator was to be built: what arrived is known."""


class Seen:
    """What arrived where models are loaded and generators built."""

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []
        self.sessions: list[sessions.Session] = []
        self.generation: Any = None
        self.extra: dict[str, Any] = {}
        self.model = make_model(make_task(), 1)

    def load(self, paths: Sequence[str], **given: Any) -> Any:
        self.loaded.append({"paths": list(paths)} | given)
        return [self.model], Namespace(task=None, criterion=None)

    def build(self, task: Any, models: Any, args: Any, *_: Any, **given: Any) -> Any:
        self.generation, self.task = args, task
        self.extra = dict(given.get("extra_gen_cls_kwargs") or {})
        raise ArrivedError


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    records = [Record(i, list(range(4, 7 + i))) for i in range(3)]
    folder = tmp_path_factory.mktemp("tiny")
    made = random_models.prepare(folder, "tiny", records)
    text = folder / f"{random_models.SPLIT}.{random_models.SOURCE}-{random_models.TARGET}"
    shutil.copy(f"{text}.{random_models.SOURCE}", f"{text}.{random_models.TARGET}")
    return [*made, "--cpu"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found, started = Seen(), sessions.Session.__init__

    def start(self: sessions.Session, *given: Any, **more: Any) -> None:
        found.sessions.append(self)
        started(self, *given, **more)

    monkeypatch.setattr(sessions.Session, "__init__", start)
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble", found.load)
    monkeypatch.setattr(
        TranslationAggdecTask, "build_generator", lambda *a, **k: found.build(*a, **k)
    )
    monkeypatch.setattr(TranslationAggdecTask, "build_criterion", lambda *a, **k: None)
    yield found


def flags(options: dict[str, Any]) -> list[str]:
    """A command line that says so."""
    return [
        "--" + name.replace("_", "-") + ("" if value is True else f"={value}")
        for name, value in options.items()
    ]


def run(tool: str, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = tool if "." in tool else f"fairseq_aggdec.cli.{tool.split()[0].replace('-', '_')}"
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [tool, *given])
    if inspect.signature(module.main).parameters:
        module.main(given)
    else:
        module.main()


@pytest.mark.parametrize("tool", OWN)
def test_every_option_arrives(
    tool: str,
    arguments: list[str],
    seen: Seen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = arguments[arguments.index("--path") + 1]
    monkeypatch.setattr(
        bench, "SystemProcess", lambda entry, given, threads: systems.load(entry, given)[1]
    )
    own = [word.replace("{tmp}", str(tmp_path)).replace("{model}", model) for word in OWN[tool]]
    given = [*arguments, *own, *flags(GENERATION | LOADING | TASK), PIECES]
    with pytest.raises(ArrivedError):
        run(tool, given, monkeypatch)
    check_generation(seen)
    check_loading(seen)
    for name, value in TASK.items():
        assert value in str(seen.task.cfg[name]), name  # a tool may add to --variant


def check_generation(seen: Seen) -> None:
    for name, value in GENERATION.items():
        assert getattr(seen.generation, name) == value, name
    assert seen.extra == {"lm_model": seen.model, "lm_weight": 0.5}
    assert seen.sessions[-1].prefix_size == GENERATION["prefix_size"]
    assert any(getattr(part, "apply_during_inference", False) for part in seen.model.modules())


def check_loading(seen: Seen) -> None:
    loaded = seen.loaded[0]
    assert loaded["arg_overrides"] == {"dropout": 0.25}
    assert loaded["suffix"] == "-x"
    assert (loaded["num_shards"], loaded["strict"]) == (2, False)
    assert seen.loaded[1]["paths"] == ["lm.pt"]
    assert next(seen.model.parameters()).dtype is torch.float16
    session = seen.sessions[-1]
    assert session.codec.decode("a b \u2581 c") == "ab c"
    assert session.cfg.common_eval.post_process == "subword_nmt"
    assert torch.initial_seed() == 7
    # 3 sentences of 4, 5 and 6 tokens; 99 hold all of them, 8 do not
    session.cfg.dataset.max_tokens = 8
    assert len(session.batches(3)) > 1


def test_every_option_is_known_here() -> None:
    """A new option must be sent on, refused, or said to be of no effect."""
    parser = sessions.generation_parser(None)
    options = {action.dest for action in parser._actions}
    read = {*GENERATION, *LOADING, *sessions.READ_BY_SOME}
    assert not read & ELSEWHERE and not sessions.REFUSED.keys() & ({*read, *ELSEWHERE})
    assert options == {*read, *sessions.REFUSED, *ELSEWHERE}
    stock = {name for name in GenerationConfig.__dataclass_fields__ if not name.startswith("_")}
    assert stock <= options


def test_every_tool_with_these_options_is_known_here() -> None:
    root = Path(sessions.__file__).parents[2]
    files = [
        *(root / "fairseq_aggdec" / "cli").glob("*.py"),
        *(root / "scripts" / "recipes").rglob("*.py"),
    ]
    tools = {
        path.stem.replace("_", "-")
        if "cli" in path.parts
        else ".".join(path.relative_to(root).with_suffix("").parts)
        for path in files
        if re.search(
            r"(generation|whole)_parser\(|flags\.split\(", path.read_text(encoding="utf-8")
        )
    }
    # Distillation, the GPU's plan and what says --int8 itself have tests of their own; the others decode nothing.
    others = {"distill", "scripts.recipes.gpu.replayed", "scripts.recipes.step_cost"}
    others |= {"scripts.recipes.flags", "scripts.recipes.gad.draft_cost"}
    others |= {f"scripts.recipes.interleaved.{name}" for name in ("contrast", "pmi")}
    assert tools - others == {tool.split()[0] for tool in OWN}


VALUES = {"distributed_world_size": 2, "num_shards": 2, "shard_id": 1, "distributed_rank": 1}
VALUES |= {"beam": 3, "nbest": 2, "batch_size": 4}
NAMES = {
    "replace_unk": "file",
    "constraints": "ordered",
    "results_path": "folder",
    "scoring": "wer",
}


@pytest.mark.parametrize("name", [*sessions.REFUSED, *sessions.READ_BY_SOME])
def test_what_cannot_arrive_is_refused(name: str, arguments: list[str], seen: Seen) -> None:
    value = VALUES.get(name, NAMES.get(name, True))
    option = "--" + name.replace("_", "-")
    with pytest.raises(SystemExit, match=f"error: {option}.* is not honoured here: "):
        sessions.Session(sessions.generation_parser(None), [*arguments, *flags({name: value})])
    assert not seen.loaded


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("audit", ["--decoding", "iad", "--beam", "3"]),
        ("audit", ["--decoding", "beam", "--beam", "3", "--beams", "2"]),
        ("trace", ["--decoding", "iad", "--beam", "3"]),
        ("bench", ["--decoding", "gad"]),
        (
            "scripts.recipes.interleaved.pmi",
            ["--lenpen", "2", "--pair", "a={model},{model}", "--output", "out"],
        ),
        ("audit", ["--model-overrides", "dropout=1"]),
    ],
)
def test_what_one_tool_does_not_read_it_refuses(
    tool: str,
    more: list[str],
    arguments: list[str],
    seen: Seen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = arguments[arguments.index("--path") + 1]
    own = [word.replace("{tmp}", str(tmp_path)).replace("{model}", model) for word in more]
    named = [word for word in more if word.startswith("--") and word != "--decoding"]
    option = named[0] if named else "--decoding"
    with pytest.raises(SystemExit, match=f"^error: {option} "):
        if tool == "pmi":
            importlib.import_module("scripts.recipes.interleaved.pmi").main([*arguments, *own])
        else:
            run(tool, [*arguments, *own], monkeypatch)


@pytest.mark.parametrize(
    ("more", "beam", "option"),
    [
        (["--unkpen", "2"], 1, "--unkpen"),
        (["--no-repeat-ngram-size", "2"], 1, "--no-repeat-ngram-size"),
        (["--match-source-len"], 5, "--match-source-len"),
        (["--lenpen", "2"], 5, "--lenpen"),
        (["--lenpen", "2", "--max-len-b", "9", "--min-len", "2"], 1, None),
        ([], 5, None),
    ],
)
def test_other_engines_are_left_out_where_they_are_not_told(
    more: list[str], beam: int, option: str | None, arguments: list[str], seen: Seen
) -> None:
    session = sessions.Session(sessions.generation_parser(None), [*arguments, *more])
    if option is None:
        engines.refuse_untold("hf", session, beam)
        return
    with pytest.raises(SystemExit, match=f"error: hf is not told {option}, "):
        engines.refuse_untold("hf", session, beam)


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ([], [32]),
        (["--batch-size", "4"], [4]),
        (["--batch-size=4", "--batch-sizes", "2", "4"], [2, 4]),
    ],
)
def test_a_batch_size_is_one_of_the_batch_sizes(
    more: list[str], sizes: list[int], arguments: list[str], seen: Seen
) -> None:
    session = sessions.Session(whole_parser("audit"), [*arguments, *more], reads=["batch_size"])
    assert session.args.batch_sizes == sizes
    with pytest.raises(SystemExit, match="error: --batch-size 3 does not go with --batch-sizes"):
        given = [*arguments, "--batch-size", "3", "--batch-sizes", "2", "4"]
        sessions.Session(whole_parser("audit"), given, reads=["batch_size"])
