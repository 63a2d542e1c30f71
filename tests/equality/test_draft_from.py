"""``--decoding iad --draft-from``: the verifier's greedy output, whatever text it drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import (
    assert_same,
    generate,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)


@pytest.fixture(scope="module")
def verifier() -> Any:
    return make_model(make_task(), 5)


def text_of(tokens: torch.Tensor) -> str:
    dictionary = make_task().target_dictionary
    return " ".join(dictionary[token] for token in tokens.tolist()[:-1])


DOCTORS = {
    "what is right": lambda text: text,
    "nothing": lambda text: "",
    "one wrong word": lambda text: " ".join(["w1", *text.split()[1:]]),
    "half of it": lambda text: " ".join(text.split()[: len(text.split()) // 2]),
    "special symbols": lambda text: f"</s> <pad> <unk> {text}",
    "unknown words": lambda text: f"never heard {text}",
    "far too much": lambda text: " ".join([text] * 8),
}


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("doctor", DOCTORS.values(), ids=DOCTORS)
def test_any_file_gives_the_verifiers_output(
    verifier: Any, doctor: Any, rows: int, tmp_path: Path
) -> None:
    sample = make_batch(random_sources(3, rows))
    expected = stock([verifier], sample)
    file = tmp_path / "drafts"
    file.write_text("".join(doctor(text_of(h["tokens"])) + "\n" for h in expected))
    task = make_task("iad", draft_from="file", draft_file=str(file))
    found = generate(task, [verifier], sample)
    assert_same(found, expected)
    if doctor is DOCTORS["what is right"]:
        assert sum(hypothesis["steps"] for hypothesis in found) <= 2 * rows


def test_lines_go_by_the_sentences_numbers(verifier: Any, tmp_path: Path) -> None:
    sample = make_batch(random_sources(3, 4))
    expected = stock([verifier], sample)
    file = tmp_path / "drafts"
    file.write_text("".join(text_of(h["tokens"]) + "\n" for h in reversed(expected)))
    sample["id"] = torch.tensor([3, 2, 1, 0])
    found = generate(make_task("iad", draft_from="file", draft_file=str(file)), [verifier], sample)
    assert sum(hypothesis["steps"] for hypothesis in found) <= 8


def test_lines_end_where_fairseq_preprocess_ends_them(verifier: Any, tmp_path: Path) -> None:
    file = tmp_path / "drafts"
    file.write_text("w1\u2028w2\n\nw3\x0cw4\n", encoding="utf-8")
    task = make_task("iad", draft_from="file", draft_file=str(file))
    drafter: Any = task.build_generator([verifier], generation_options()).drafter
    assert drafter.lines == ["w1\u2028w2", "", "w3\x0cw4"]


def test_sentences_without_numbers_are_refused(verifier: Any, tmp_path: Path) -> None:
    """fairseq-interactive makes such samples."""
    (tmp_path / "drafts").write_text("w1\n")
    sample = make_batch(random_sources(3, 1))
    del sample["id"]
    task = make_task("iad", draft_from="file", draft_file=str(tmp_path / "drafts"))
    with pytest.raises(ValueError, match="use fairseq-generate"):
        generate(task, [verifier], sample)
