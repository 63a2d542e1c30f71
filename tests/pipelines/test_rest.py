"""The rest of the pipelines: interactive, BLEU in training, tasks of examples, and what is left to stock and said."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import fairseq
import pytest
from fairseq.utils import import_user_module
from fairseq_cli import interactive, train

from fairseq_aggdec.cli import fairseq_commands
from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    SPEECH_SIZES,
    assert_same,
    counted,
    decode,
    forgotten,
    of_stock,
    ours,
    run,
    sentences,
    stock,
    write_model,
    write_speech,
    write_text,
    write_training,
)

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


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
def test_methods_with_another_task(decoding: str, data: Path, tmp_path: Path) -> None:
    task = "translation_multi_simple_epoch"
    flags = shlex.split(MANY)
    path = write_model(tmp_path / "model.pt", data, task, "transformer", *flags, *SIZES)
    command = [data, "--path", path, *BATCHES, "--max-len-b", "14", "--task", task, *flags, *PAIR]
    assert_same(ours(*command, "--decoding", decoding), stock(*command, "--beam", "1"))


def test_mixture_of_experts(data: Path, tmp_path: Path) -> None:
    folder = ["--user-dir", str(EXAMPLES / "translation_moe" / "translation_moe_src")]
    with forgotten():
        import_user_module(type("", (), {"user_dir": folder[1]}))
    flags = shlex.split("--method hMoEup --num-experts 3")
    path = write_model(
        tmp_path / "m.pt", data, "translation_moe", "transformer", *PAIR, *flags, *SIZES
    )
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


STOCK = {
    "sampling": ("transformer", "", "--sampling --seed 4 --nbest 4", "--sampling"),
    "siblings": ("transformer", "", "--diversity-rate 0.5", "--diversity-rate"),
    "lightconv": ("lightconv_iwslt_de_en", "", "", "LightConvDecoder"),
    "fconv": ("fconv_iwslt_de_en", "", "", "FConvDecoder"),
    "lstm": ("lstm", "", "", "LSTMDecoder"),
    "adaptive softmax": ("transformer", "--adaptive-softmax-cutoff 10,20", "", "adaptive"),
}
NARROW = {
    "lstm": shlex.split("--encoder-embed-dim 16 --decoder-embed-dim 16"),
    "fconv": shlex.split(
        "--encoder-embed-dim 16 --decoder-embed-dim 16 --decoder-out-embed-dim 16 "
        "--encoder-layers [(16,3)]*2 --decoder-layers [(16,3)]*2"
    ),
    "lightconv": shlex.split(
        "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 "
        "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
        "--decoder-attention-heads 2 --encoder-conv-dim 16 --decoder-conv-dim 16 "
        "--encoder-kernel-size-list [3,5] --decoder-kernel-size-list [3,5]"
    ),
}


@pytest.mark.parametrize("name", STOCK)
def test_what_is_left_to_stock_is_said(name: str, data: Path, tmp_path: Path) -> None:
    arch, training, decoding, reason = STOCK[name]
    flags = [*shlex.split(training), *NARROW.get(name, SIZES)]
    path = write_model(tmp_path / "m.pt", data, "translation", arch, *PAIR, *flags)
    command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, *shlex.split(decoding)]
    found, (said,) = of_stock(*command)
    assert reason in said
    assert_same(found, stock(*command))


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
