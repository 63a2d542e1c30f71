"""Other engines as systems of the benchmark, on the checkpoint that is benchmarked."""

from __future__ import annotations

import itertools
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.dataclass.configs import GenerationConfig
from omegaconf import DictConfig, OmegaConf

import fairseq_aggdec
from fairseq_aggdec import installing
from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import hugging_face
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.methods.shared.loading import load_writer


class CTranslate2(NamedTuple):
    """How CTranslate2 decodes; ``rows``: sentences of a batch at most, which it makes itself, 0: as it is given."""

    compute_type: str
    beam: int
    rows: int = 0


OWN_BATCH = 32
ENDINGS = {"": (1, 0), "-beam5": (5, 0), "-own": (1, OWN_BATCH)}
CTRANSLATE2 = {
    f"ct2-{kind}{ending}": CTranslate2(kind, *how)
    for kind, (ending, how) in itertools.product(
        ("float32", "float16", "bfloat16", "int8"), ENDINGS.items()
    )
}
ASSISTED = "hf-assistant"
ONNX = {"onnx": 1, "onnx-beam5": 5}
HALF = {"-bf16": torch.bfloat16, "-fp16": torch.float16}
HUGGING_FACE = {
    **{f"hf{beam}{half}": 5 if beam else 1 for beam in ("", "-beam5") for half in ("", *HALF)},
    ASSISTED: 1,
    **ONNX,
}  # beam
LABELS = {
    **{
        name: f"CTranslate2 {found.compute_type}, {'beam 5' if found.beam > 1 else 'greedy'}"
        + (f", its own batches of {found.rows}" if found.rows else "")
        for name, found in CTRANSLATE2.items()
    },
    **{
        name: f"Hugging Face transformers, {'beam 5' if beam > 1 else 'greedy'}"
        + "".join(f", {half[1:]}" for half in HALF if name.endswith(half))
        for name, beam in HUGGING_FACE.items()
        if name not in ONNX
    },
    ASSISTED: "Hugging Face transformers, greedy, with an assistant",
    "onnx": "ONNX Runtime, greedy",
    "onnx-beam5": "ONNX Runtime, beam 5",
}


NEED_A_GPU = {name for name in LABELS if name.endswith("-fp16") or name.startswith("ct2-float16")}


# Generation options that every engine here is told; "--beam" is in the name of a system.
TOLD = {"beam", "max_len_a", "max_len_b", "min_len"}
# Those that only say which is the best of several finished hypotheses, of which greedy search has one.
RANKING = {"lenpen", "unnormalized", "no_early_stop"}
# Those without effect by themselves, or on what an engine writes.
SILENT = {"lm_weight", "sampling_topk", "sampling_topp", "diverse_beam_strength", "print_alignment"}
SILENT |= {"retain_iter_history", "retain_dropout_modules", "no_seed_provided"}


def refuse_untold(name: str, session: Session, beam: int) -> None:
    """Ends with a sentence about an option of generation that an engine is not told: it would decode otherwise.

    Args:
        name: of the system. beam: of its search.
    """
    known = TOLD | SILENT | (RANKING if beam == 1 else set())
    given, unset = session.cfg.generation, GenerationConfig()
    for option in sorted(set(GenerationConfig.__dataclass_fields__) - known):
        if not option.startswith("_") and given[option] != getattr(unset, option):
            shown = "--" + option.replace("_", "-")
            raise SystemExit(f"error: {name} is not told {shown}, and would decode without it")


def refuse_half_on_cpu(name: str, session: Session) -> None:
    """Ends with a sentence about a system of half precision that no engine has on a CPU."""
    if name in NEED_A_GPU and not session.cuda:
        raise SystemExit(f"error: --systems {name} needs a GPU")


def ctranslate2_system(name: str, session: Session, alone: bool = False) -> System:
    """CTranslate2's search on the same checkpoint.

    It gets as many threads as torch has now. int8 gets one unless it is ``alone`` in its process: with two, beside
    others, it has been seen ten times slower.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise SystemExit(
            f"error: --systems {name} needs CTranslate2: {installing.advice('ctranslate2')}"
        ) from error
    task, engine = session.task, CTRANSLATE2[name]
    refuse_untold(name, session, engine.beam)
    refuse_half_on_cpu(name, session)
    one_thread = engine.compute_type == "int8" and not alone
    with tempfile.TemporaryDirectory(prefix="ct2-") as folder:
        checkpoint, converted = Path(folder, "fairseq.pt"), str(Path(folder, "converted"))
        write_for_ctranslate2(session, checkpoint)
        ctranslate2.converters.FairseqConverter(
            str(checkpoint),
            task.cfg.data,
            source_lang=task.cfg.source_lang,
            target_lang=task.cfg.target_lang,
            user_dir=fairseq_aggdec.__path__[0],
        ).convert(converted)
        checkpoint.unlink()
        translator = ctranslate2.Translator(
            converted,
            device="cuda" if session.cuda else "cpu",
            compute_type=engine.compute_type,
            intra_threads=1 if one_thread else torch.get_num_threads(),
            inter_threads=1,
        )
    generation = session.cfg.generation
    source, target = task.source_dictionary, task.target_dictionary
    special = {source.pad(), source.eos()}

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        rows = sample["net_input"]["src_tokens"].tolist()
        words = [[source[token] for token in row if token not in special] for row in rows]
        limit = int(generation.max_len_a * len(rows[0]) + generation.max_len_b)
        found = translator.translate_batch(
            words,
            beam_size=engine.beam,
            max_batch_size=engine.rows,
            max_decoding_length=limit,
            min_decoding_length=generation.min_len,
        )
        return [
            [*(target.index(word) for word in result.hypotheses[0]), target.eos()]
            for result in found
        ]

    return System(name, decode)


def hugging_face_system(name: str, session: Session) -> System:
    """The search of Hugging Face transformers on the same weights, in PyTorch or in ONNX Runtime."""
    (model,) = one_model(session, "Hugging Face transformers decodes")
    refuse_untold(name, session, HUGGING_FACE[name])
    refuse_half_on_cpu(name, session)
    smaller = assistant_of(session, model) if name == ASSISTED else None
    dictionary, assistant = session.task.target_dictionary, None
    try:
        made = hugging_face.exported(model, dictionary)
        if smaller is not None:
            assistant = hugging_face.exported(smaller, dictionary)
        if name in ONNX:
            made = hugging_face.in_onnx(made)
    except ImportError as error:
        modules = ["transformers", *(["optimum"] if name in ONNX else [])]
        needed = "Optimum with ONNX Runtime" if name in ONNX else "transformers"
        raise SystemExit(f"error: {name} needs {needed}: {installing.advice(*modules)}") from error
    device = torch.device("cuda" if session.cuda and name not in ONNX else "cpu")
    for ending, dtype in HALF.items():
        if name.endswith(ending):
            made.to(dtype)
    for one in (made, assistant):
        if one is not None and name not in ONNX:
            one.to(device)
    generation = session.cfg.generation

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        tokens = sample["net_input"]["src_tokens"].to(device)
        limit = int(generation.max_len_a * tokens.size(1) + generation.max_len_b)
        limit = min(limit, model.max_decoder_positions() - 1)
        if assistant is not None and len(tokens) > 1:
            raise SystemExit(f"error: {name} takes one sentence at a time: --batch-sizes 1")
        beam = HUGGING_FACE[name]
        return hugging_face.translate(made, tokens, limit, generation.min_len, beam, assistant)

    return System(name, decode)


def assistant_of(session: Session, model: Any) -> Any:
    """The model whose drafts transformers verifies: ``--assistant`` of the rivals, the session's ``--drafter-path``.

    Raises:
        SystemExit: it is not given, or reads fewer positions than ``model``.
        FileNotFoundError, CheckpointError: no file, or a model of other data.
    """
    path = session.task.cfg.drafter_path
    if not path:
        raise SystemExit(f"error: {ASSISTED} needs --assistant FILE")
    smaller = load_writer(path, session.task, "--assistant")
    theirs, ours = smaller.max_positions(), model.max_positions()
    if any(fewer < more for fewer, more in zip(theirs, ours, strict=True)):
        raise SystemExit(
            f"error: --assistant {path} reads {theirs[0]} source and {theirs[1]} target positions, the model {ours[0]} "
            f"and {ours[1]}"
        )
    return smaller


def one_model(session: Session, engine: str) -> list[Any]:
    """The session's only model."""
    if len(session.models) > 1:
        raise SystemExit(f"error: {engine} with one model, --path names several")
    return list(session.models)


def write_for_ctranslate2(session: Session, path: Path) -> None:
    """The session's model as the converter reads it: options of model and task flat in one Namespace."""
    (model,) = one_model(session, "CTranslate2 decodes")
    options: dict[str, Any] = {}
    for part in (session.saved.task, session.saved.model):
        plain = OmegaConf.to_container(part) if isinstance(part, DictConfig) else vars(part)
        assert isinstance(plain, dict)
        options.pop("_name", None)
        options.update({str(name): value for name, value in plain.items()})
    options["task"] = "translation"
    parameters = {
        name: value.float().cpu() if value.is_floating_point() else value.cpu()
        for name, value in model.state_dict().items()
    }
    torch.save({"args": Namespace(**options), "model": parameters}, path)
