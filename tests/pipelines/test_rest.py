"""The rest of the pipelines: interactive, BLEU in training, tasks of examples, n-gram blocking, models of one's own."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import fairseq
import hydra.experimental
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from fairseq.dataclass.initialize import hydra_init
from fairseq.models.transformer import TransformerModel
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.utils import import_user_module
from fairseq_cli import hydra_train, interactive, train, validate

import fairseq_aggdec
from fairseq_aggdec.cli import fairseq_commands
from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    SPEECH_SIZES,
    USER_DIR,
    assert_same,
    counted,
    decode,
    forgotten,
    ours,
    run,
    sentences,
    stock,
    write_model,
    write_speech,
    write_text,
    write_training,
)

COMPOSING: Any = hydra if hasattr(hydra, "compose") else hydra.experimental  # hydra < 1.1
EXAMPLES = Path(fairseq.__file__).parent / "examples"
PAIR = shlex.split("-s de -t en")
MANY = "--langs de,en --lang-pairs de-en,en-de --encoder-langtok src --decoder-langtok"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("rest"), ["de", "en"])


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    return write_model(data / "model.pt", data, "translation", "transformer", *PAIR, *SIZES)


INTERACTIVE = shlex.split("--cpu --buffer-size 4 --batch-size 4")


@pytest.mark.parametrize("task", ["translation", "translation_multi_simple_epoch"])
def test_interactive(task: str, data: Path, tmp_path: Path) -> None:
    many = shlex.split(MANY) if task != "translation" else []
    training = many or PAIR
    path = write_model(tmp_path / "model.pt", data, task, "transformer", *training, *SIZES)
    command = [data, "--path", path, *INTERACTIVE, *SEARCH, "--task", task, *many, *PAIR]
    lines = "\n".join(sentences()) + "\n"
    kwargs: Any = {"command": interactive.cli_main, "stdin": lines}
    assert_same(ours(*command, **kwargs), stock(*command, **kwargs))


def test_interactive_speech_and_an_ensemble(tmp_path: Path) -> None:
    data = write_speech(tmp_path / "data")
    models = [
        write_model(
            tmp_path / f"{seed}.pt",
            data,
            "speech_to_text",
            "s2t_transformer",
            *SPEECH_SIZES,
            seed=seed,
        )
        for seed in (1, 2)
    ]
    path = ":".join(map(str, models))
    command = [data, "--path", path, *INTERACTIVE, *SEARCH, "--task", "speech_to_text"]
    lines = "".join(f"{data / f'{number}.npy'}\n" for number in range(4))
    kwargs: Any = {"command": interactive.cli_main, "stdin": lines}
    assert_same(ours(*command, **kwargs), stock(*command, **kwargs))


def test_speech_has_no_text_to_copy(tmp_path: Path) -> None:
    data = write_speech(tmp_path / "data")
    path = write_model(tmp_path / "s.pt", data, "speech_to_text", "s2t_transformer", *SPEECH_SIZES)
    command = [data, "--path", path, *BATCHES, "--task", "speech_to_text", "--max-tokens", "200"]
    command += ["--max-len-b", "14"]
    greedy = ours(*command, "--decoding", "greedy")
    assert_same(greedy, stock(*command, "--beam", "1"))
    with pytest.raises(ValueError, match="--task speech_to_text has no text to copy drafts from"):
        ours(*command, "--decoding", "iad")


OTHERS = {
    "translation_multi_simple_epoch": ("transformer", MANY),
    "multilingual_translation": (
        "multilingual_transformer",
        "--lang-pairs de-en,en-de --encoder-langtok tgt --decoder-langtok",
    ),
}


@pytest.mark.parametrize("task", OTHERS)
def test_methods_with_another_task(task: str, data: Path, tmp_path: Path) -> None:
    arch, both = OTHERS[task]
    flags = shlex.split(both)
    path = write_model(tmp_path / "model.pt", data, task, arch, *flags, *SIZES)
    command = [data, "--path", path, *BATCHES, "--max-len-b", "14", "--task", task, *flags, *PAIR]
    expected = stock(*command, "--beam", "1")
    for decoding in ("greedy", "iad"):
        assert_same(ours(*command, "--decoding", decoding), expected)


def test_mixture_of_experts(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A hub imports the folder behind the plugin, and says that its task is stock's; ``adopt`` takes it over."""
    folder = ["--user-dir", str(EXAMPLES / "translation_moe" / "translation_moe_src")]
    with forgotten():
        import_user_module(type("", (), {"user_dir": folder[1]}))
    flags = shlex.split("--method hMoEup --num-experts 3")
    path = write_model(
        tmp_path / "m.pt", data, "translation_moe", "transformer", *PAIR, *flags, *SIZES
    )
    caplog.set_level("INFO")
    with forgotten():
        hub = TransformerModel.from_pretrained(str(tmp_path), "m.pt", str(data), user_dir=folder[1])
        how = {"beam": 2, "max_len_b": 9, "inference_step_args": {"expert": 1}}
        expected = hub.translate(["w1 w2"], **how)
        assert "--task translation_moe is left to stock fairseq in this hub model" in caplog.text
        with counted() as batches:
            assert fairseq_aggdec.adopt(hub).translate(["w1 w2"], **how) == expected
    assert batches
    command = [data, "--path", path, *BATCHES, *SEARCH, "--task", "translation_moe", *PAIR, *flags]
    command += [*folder, "--gen-expert", "1"]
    with forgotten():
        found = decode(*command, command=fairseq_commands.generate)
    assert found.batches and not found.left()
    assert_same(found, stock(*command))


def test_alignments(data: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.pt", data, "translation", "transformer_align", *PAIR, *SIZES)
    for kind in ("hard", "soft"):
        command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, "--print-alignment", kind]
        found, expected = ours(*command), stock(*command)
        assert_same(found, expected)
        lines = [re.findall(r"^A-.*$", one.result.stdout, re.M) for one in (found, expected)]
        assert lines[0] and (kind == "soft" or lines[0] == lines[1])


def test_bleu_in_training(data: Path, tmp_path: Path) -> None:
    folder = write_training(tmp_path / "data", ["de", "en"])
    command = [folder, *PAIR, *SIZES, "--arch", "transformer", "--cpu", "--max-update", "2"]
    command += shlex.split(
        "--eval-bleu --eval-bleu-detok space --optimizer adam --lr 0.01 --batch-size 5 --seed 3 --num-workers 0 "
        "--no-save --no-progress-bar --log-format simple --required-batch-size-multiple 1"
    )
    command += ["--eval-bleu-args", '{"beam": 3, "max_len_b": 9}']
    scores = []
    for more in ([], ["--user-dir", fairseq_commands.DEFAULTS[1]]):
        with forgotten(), counted() as taken:
            found = run(train.cli_main, *command, *more)
        assert bool(taken) == bool(more)
        scores.append(re.findall(r"valid.* bleu ([\d.]+)", "\n".join(found.log)))
    assert scores[0] and scores[0] == scores[1]


HYDRA = """
common: {{cpu: true, seed: 3, log_format: simple}}
task:
  _name: translation
  data: {data}
  source_lang: de
  target_lang: en
  eval_bleu: true
  eval_bleu_args: '{{"beam": 3, "max_len_b": 9}}'
model:
  _name: transformer
  encoder_layers: 2
  decoder_layers: 2
  encoder_embed_dim: 16
  decoder_embed_dim: 16
  encoder_ffn_embed_dim: 32
  decoder_ffn_embed_dim: 32
  encoder_attention_heads: 2
  decoder_attention_heads: 2
criterion: {{_name: cross_entropy}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.01], max_update: 2}}
dataset: {{batch_size: 5, num_workers: 0, required_batch_size_multiple: 1}}
checkpoint: {{no_save: true}}
"""


def test_bleu_in_training_by_hydra(data: Path, tmp_path: Path) -> None:
    folder = write_training(tmp_path / "data", ["de", "en"])
    (tmp_path / "training.yaml").write_text(HYDRA.format(data=folder))
    hydra_init("training")
    scores = []
    for more in ([], [f"common.user_dir={USER_DIR[1]}", "+task.draft_from=none"]):
        with COMPOSING.initialize_config_dir(str(tmp_path)):
            config = COMPOSING.compose("training", more)
        with forgotten(), counted() as taken:
            found = run(partial(hydra_train._hydra_main, config))
        assert bool(taken) == bool(more)
        scores.append(re.findall(r"valid.* bleu ([\d.]+)", "\n".join(found.log)))
    assert scores[0] and scores[0] == scores[1]


def test_denoising(data: Path, tmp_path: Path) -> None:
    dictionary = Dictionary.load(str(data / "dict.txt"))
    builder = make_builder(str(data / "test.bin"), "mmap", len(dictionary))
    for line in sentences():
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(str(data / "test.idx"))
    path = write_model(tmp_path / "m.pt", data, "denoising", "bart_base", *SIZES)
    command = [data, "--path", path, *BATCHES, *SEARCH, "--task", "denoising"]
    command += shlex.split("--mask 0.3 --replace-length 1")
    assert_same(ours(*command), stock(*command))
    command += shlex.split("--sample-break-mode eos")
    for decode_with in (ours, stock):
        with pytest.raises(AttributeError, match="module 'numpy' has no attribute 'compat'"):
            decode_with(*command)


def test_validate(data: Path, model: Path) -> None:
    found = []
    command = ["--task", "translation", "--path", model, "--valid-subset", "test", "--cpu"]
    command += shlex.split("--batch-size 5 --num-workers 0 --required-batch-size-multiple 1")
    for more in ([], USER_DIR):
        with forgotten():
            log = run(validate.cli_main, data, *command, *PAIR, *more).log
        found.append(re.findall(r"test.* loss ([\d.]+).* ppl ([\d.]+)", "\n".join(log)))
    assert found[0] and found[0] == found[1]


def test_summaries_repeat_no_three_words(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of CNN/DM. Stock's blocker reads what is not written yet; the oracle's does not."""
    path = write_model(tmp_path / "m.pt", data, "translation", "bart_base", *PAIR, *SIZES)
    command = [data, "--path", path, *BATCHES, *PAIR, "--beam", "4", "--lenpen", "2.0"]
    command += shlex.split("--max-len-b 30 --min-len 20 --no-repeat-ngram-size 3")
    found, expected = ours(*command), stock(*command)
    assert found.nbest != expected.nbest
    forward = NGramRepeatBlock.forward

    def written(self: Any, tokens: Any, lprobs: Any, bsz: int, beam: int, step: int) -> Any:
        return forward(self, tokens[:, : step + 1], lprobs, bsz, beam, step)

    monkeypatch.setattr(NGramRepeatBlock, "forward", written)
    assert_same(found, stock(*command))


def test_an_architecture_of_ones_own(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own_architecture"
    own.mkdir()
    (own / "__init__.py").write_text(
        "from fairseq.models import register_model, register_model_architecture\n"
        "from fairseq.models.transformer import TransformerModel, base_architecture\n"
        "@register_model('own_transformer')\n"
        "class OwnTransformer(TransformerModel):\n"
        "    pass\n"
        "@register_model_architecture('own_transformer', 'own_transformer_18')\n"
        "def own_transformer_18(args):\n"
        "    args.encoder_normalize_before = args.decoder_normalize_before = True\n"
        "    base_architecture(args)\n"
    )
    with forgotten():
        import_user_module(type("", (), {"user_dir": str(own)}))
    arch = "own_transformer_18"
    path = write_model(tmp_path / "m.pt", data, "translation", arch, *PAIR, *SIZES)
    command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, "--user-dir", own]
    with forgotten():
        found = decode(*command, command=fairseq_commands.generate)
    assert found.batches and not found.left()
    assert_same(found, stock(*command))
