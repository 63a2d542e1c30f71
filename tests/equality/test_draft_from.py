"""``--decoding iad --draft-from``: the verifier's greedy output, whatever text it drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.lattice.candidates import CandidateModel
from fairseq_aggdec.methods import iad as iad_method
from tests.random_models import random_tables
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


def refusal(verifier: Any, **options: Any) -> str:
    """Why two sentences are not decoded."""
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        generate(make_task("iad", **options), [verifier], make_batch([[5, 6], [7]]))
    return str(error.value)


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
    file.write_text("")
    assert "has 0 lines" in refusal(verifier, draft_from="file", draft_file=str(file))


def test_sentences_without_numbers_are_refused(verifier: Any, tmp_path: Path) -> None:
    """fairseq-interactive makes such samples."""
    (tmp_path / "drafts").write_text("w1\n")
    sample = make_batch(random_sources(3, 1))
    del sample["id"]
    task = make_task("iad", draft_from="file", draft_file=str(tmp_path / "drafts"))
    with pytest.raises(ValueError, match="use fairseq-generate"):
        generate(task, [verifier], sample)


WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "interleaved": ("interleaved_transformer", {"directions": 2, "words_per_direction": 2}),
    "lattice": ("lattice_transformer", {"decoder_layers": 1}),
}


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("kind", list(WRITERS))
def test_another_model_drafts(
    verifier: Any,
    kind: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    arch, options = WRITERS[kind]
    writer = make_model(make_task(), 2, arch, **options)
    monkeypatch.setattr(iad_method, "load_writer", lambda path, task: writer)
    folder = tmp_path / "lattice"
    plain = make_task()
    random_tables().save(folder, plain.source_dictionary, plain.target_dictionary, {})
    assert CandidateModel.open(folder, plain.source_dictionary, plain.target_dictionary)
    chosen = {"drafter_path": "writer.pt", "lattice": str(folder)}
    task = make_task("iad", draft_from=kind, **chosen)
    sample = make_batch(random_sources(6, rows))
    for options in ({}, {"min_len": 6, "max_len_b": 9}):
        found = generate(task, [verifier], sample, **options)
        assert_same(found, stock([verifier], sample, **options))
    assert task.counters.drafted > 0
    assert task.counters.sentences == 2 * rows


def test_scores_that_are_no_numbers_draft_nothing(
    verifier: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_model(make_task(), 2, "lattice_transformer", decoder_layers=1)
    with torch.no_grad():
        writer.decoder.layers[0].fc1.weight[0, 0] = torch.nan
    monkeypatch.setattr(iad_method, "load_writer", lambda path, task: writer)
    plain = make_task()
    random_tables().save(tmp_path / "lattice", plain.source_dictionary, plain.target_dictionary, {})
    more = {"drafter_path": "writer.pt", "lattice": str(tmp_path / "lattice")}
    task = make_task("iad", draft_from="lattice", **more)
    sample = make_batch(random_sources(6, 5))
    assert_same(generate(task, [verifier], sample), stock([verifier], sample))
    assert task.counters.drafted == 0
    assert "--drafter-path" in caplog.text and "not finite" in caplog.text


@pytest.mark.parametrize("kind", list(WRITERS))
def test_a_source_too_long_for_the_other_model_has_no_draft(
    verifier: Any, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arch, options = WRITERS[kind]
    short = {"encoder_learned_pos": True, "max_source_positions": 4}
    writer = make_model(make_task(), 2, arch, **options, **short)
    monkeypatch.setattr(iad_method, "load_writer", lambda path, task: writer)
    plain = make_task()
    random_tables().save(tmp_path / "lattice", plain.source_dictionary, plain.target_dictionary, {})
    more = {"drafter_path": "writer.pt", "lattice": str(tmp_path / "lattice")}
    sample = make_batch([[5, 6, 7, 8, 9], [5]])
    task = make_task("iad", draft_from=kind, **more)
    assert_same(generate(task, [verifier], sample), stock([verifier], sample))
    assert task.counters.drafted == 0


@pytest.mark.parametrize("kind", list(WRITERS))
def test_the_other_model_follows_a_verifier_that_is_moved(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arch, options = WRITERS[kind]
    writer, moved = make_model(make_task(), 2, arch, **options), make_model(make_task(), 5)
    monkeypatch.setattr(iad_method, "load_writer", lambda path, task: writer)
    plain = make_task()
    random_tables().save(tmp_path / "lattice", plain.source_dictionary, plain.target_dictionary, {})
    more = {"drafter_path": "writer.pt", "lattice": str(tmp_path / "lattice")}
    task = make_task("iad", draft_from=kind, **more)
    generator = task.build_generator([moved], generation_options())
    moved.bfloat16()
    generator.generate([moved], make_batch([[5, 6, 7]]))
    assert next(writer.parameters()).dtype is torch.bfloat16


def test_refusals_name_the_option(
    verifier: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "--draft-file" in refusal(verifier, draft_from="file")
    assert "with --draft-from file only" in refusal(verifier, draft_file=str(tmp_path / "drafts"))
    assert "nothing" in refusal(verifier, draft_from="file", draft_file=str(tmp_path / "nothing"))
    (tmp_path / "short").write_text("w1\n")
    assert "has 1 lines" in refusal(verifier, draft_from="file", draft_file=str(tmp_path / "short"))
    assert "--drafter-path" in refusal(verifier, draft_from="interleaved")
    monkeypatch.setattr(iad_method, "load_writer", lambda path, task: verifier)
    message = refusal(verifier, draft_from="lattice", drafter_path="writer.pt")
    assert "--drafter-path" in message and "lattice_transformer" in message
