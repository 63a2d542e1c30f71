"""UA-GEC documents as aligned files: held-out documents, two annotators, the sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.recipes.aggressive import ua_gec


@dataclass
class Document:
    """What of the package's class is read."""

    doc_id: str
    source_sentences_tokenized: list[str]
    target_sentences_tokenized: list[str]
    annotator: int = 1
    sensitive: bool = False

    @property
    def meta(self) -> SimpleNamespace:
        return SimpleNamespace(annotator_id=self.annotator, is_sensitive=self.sensitive)


def _document(doc_id: str, annotator: int = 1, n: int = 1, sensitive: bool = False) -> Document:
    sources = [f"{doc_id} {i}" for i in range(n)]
    targets = [f"{source} corrected by {annotator}" for source in sources]
    return Document(doc_id, sources, targets, annotator, sensitive)


def test_pairs_leave_out_empty_sides() -> None:
    document = Document("1", ["a ", "b", ""], [" A", "", "c"])
    assert ua_gec.sentence_pairs(document) == [("a", "A")]


def test_pairs_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="document 7: 2 source but 1 corrected"):
        ua_gec.sentence_pairs(Document("7", ["a", "b"], ["A"]))


def test_all_annotations_of_a_document_are_on_one_side() -> None:
    documents = [_document(str(i), annotator) for i in range(10) for annotator in (1, 2)]
    train, valid = ua_gec.split_documents(documents, 3, seed=1)
    assert len(train) == 14
    assert len(valid) == 3  # one annotation of each
    assert not {d.doc_id for d in train} & {d.doc_id for d in valid}
    assert ua_gec.split_documents(documents, 3, seed=1) == (train, valid)


def test_annotators_are_aligned_and_an_empty_correction_keeps_the_source() -> None:
    first = Document("1", ["a", "b", ""], ["A", "", ""])
    second = Document("1", ["a", "b", ""], ["a", "B", ""], annotator=2)
    alone = _document("2")
    assert ua_gec.aligned_annotations([first, second, alone]) == [("a", "A", "a"), ("b", "b", "B")]


def test_annotators_must_have_seen_the_same_text() -> None:
    first, second = Document("1", ["a"], ["A"]), Document("1", ["b"], ["A"], annotator=2)
    with pytest.raises(ValueError, match=r"document 1: .*'a', 'b'"):
        ua_gec.aligned_annotations([first, second])


def test_a_sample_is_whole_short_unoffensive_documents() -> None:
    documents = [_document(str(i), a, n=3) for i in range(20) for a in (1, 2)]
    documents += [_document("long", a, n=9) for a in (1, 2)]
    documents += [_document("rude", a, n=1, sensitive=True) for a in (1, 2)]
    chosen = ua_gec.sample_documents(documents, 30, seed=1)
    assert len(chosen) == 20  # ten documents of three sentences, two annotators
    assert not {"long", "rude"} & {document.doc_id for document in chosen}


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(partition: str, layer: str) -> list[Document]:
        assert layer == "gec-only"
        annotators = (1,) if partition == "train" else (1, 2)
        return [_document(f"{partition}{i}", a, n=2) for i in range(5) for a in annotators]

    monkeypatch.setattr(ua_gec, "load_documents", load)
    ua_gec.main(["--output", str(tmp_path), "--valid-documents", "2"])
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in tmp_path.iterdir()}
    pairs = {"train.src": 6, "train.tgt": 6, "valid.src": 4, "valid.tgt": 4}
    assert lengths == pairs | {"test.src": 10, "test.tgt": 10, "test.tgt2": 10}
    ua_gec.main(["--output", str(tmp_path / "few"), "--sample", "20"])
    assert {path.name for path in (tmp_path / "few").iterdir()} == {
        "sample.src",
        "sample.tgt",
        "sample.tgt2",
    }


def test_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ua_gec, "load_documents", lambda *_: [_document("1", a, n=9) for a in (1, 2)]
    )
    monkeypatch.setattr(ua_gec, "split_documents", lambda documents, *_: (documents, documents))
    ua_gec.main(["--output", str(tmp_path), "--limit", "4"])
    assert {len(path.read_text("utf-8").splitlines()) for path in tmp_path.iterdir()} == {4}


def test_the_real_test_set() -> None:
    pytest.importorskip("ua_gec")
    documents = ua_gec.load_documents("test", "gec-only")
    rows = ua_gec.aligned_annotations(documents)
    assert len(rows) == 2696
    assert all(text == text.strip() and text for row in rows for text in row)
    assert not any("\n" in text for row in rows for text in row)
    assert 0.3 < sum(source != first for source, first, _ in rows) / len(rows) < 0.7
    sample = ua_gec.aligned_annotations(ua_gec.sample_documents(documents, 200, seed=1))
    assert set(sample) <= set(rows)
    assert 150 < len(sample) < 250
