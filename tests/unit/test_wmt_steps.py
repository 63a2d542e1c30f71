"""Public translation data: which files, which lines of them, and which pairs are trained on."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import wmt_sets
import wmt_steps
from wmt_sets import SETS, StepError


def write_tar(path: Path, members: Mapping[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def extract(name: str, raw: Path, tmp_path: Path) -> Path:
    output = tmp_path / "text"
    output.mkdir()
    wmt_steps.text(argparse.Namespace(set=name, raw=str(raw), output=str(output)))
    return output


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def planned(name: str, raw: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    wmt_steps.plan(argparse.Namespace(set=name, raw=str(raw)))
    return capsys.readouterr().out.splitlines()


# -- what to download


def test_only_what_is_absent_is_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("training-parallel-commoncrawl.tgz", "valid.en", "valid.de", "test.en"):
        (tmp_path / name).touch()
    found = planned("wmt14-en-de", tmp_path, capsys)
    assert sorted(line.split()[1] for line in found) == [
        "training-parallel-europarl-v7.tgz",
        "training-parallel-nc-v9.tgz",
        "wmt14/full",
    ]
    assert "sacrebleu wmt14/full test" in found


def test_every_set_of_sacrebleu_exists() -> None:
    from sacrebleu.dataset import DATASETS

    for data_set in SETS.values():
        for split in ("valid", "test"):
            name = data_set.sacrebleu_set(split)
            if name:
                assert "-".join(data_set.languages) in DATASETS[name].langpairs


# -- damaged archives


@pytest.mark.parametrize("name", ["a.tgz", "a.tgz.partial", "a.zip", "a.tar"])
def test_archives_that_are_cut_short_are_refused(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / name, bytes(range(256)) * 100
    if ".zip" in name:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", content)
    else:
        write_tar(path, {"x": content, "y": content}, "w:gz" if ".tgz" in name else "w")
    wmt_steps.check(argparse.Namespace(archive=str(path)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(StepError, match="damaged or incomplete"):
        wmt_steps.check(argparse.Namespace(archive=str(path)))


# -- from archives to text


def make_english_romanian(raw: Path) -> None:
    europarl = {f"training-parallel-ep-v8/europarl-v8.ro-en.{x}": x.encode() for x in ("en", "ro")}
    write_tar(raw / "training-parallel-ep-v8.tgz", {k: v + b" 1\n" for k, v in europarl.items()})
    with zipfile.ZipFile(raw / "SETIMES-en-ro.txt.zip", "w") as archive:
        archive.writestr("README", "")
        for x in ("en", "ro"):
            archive.writestr(f"SETIMES.en-ro.{x}", f"{x}  2\u2028a\n{x} 3\r\n")
    for split in ("valid", "test"):
        for x in ("en", "ro"):
            (raw / f"{split}.{x}").write_text(f"{split} {x}\n")


def test_corpora_are_joined_and_odd_spaces_are_one_space(tmp_path: Path) -> None:
    make_english_romanian(tmp_path)
    found = extract("wmt16-en-ro", tmp_path, tmp_path)
    for x in ("en", "ro"):
        assert lines(found, f"train.raw.{x}") == [f"{x} 1", f"{x} 2 a", f"{x} 3"]
        assert lines(found, f"test.raw.{x}") == [f"test {x}"]


def test_texts_of_different_lengths_are_refused(tmp_path: Path) -> None:
    make_english_romanian(tmp_path)
    (tmp_path / "valid.ro").write_text("one\ntwo\n")
    with pytest.raises(StepError, match=r"valid\.en"):
        extract("wmt16-en-ro", tmp_path, tmp_path)


def test_missing_members_are_named(tmp_path: Path) -> None:
    make_english_romanian(tmp_path)
    write_tar(tmp_path / "training-parallel-ep-v8.tgz", {"europarl-v8.ro-en.en": b"a\n"})
    with pytest.raises(StepError, match=r"0 files europarl-v8\.ro-en\.ro"):
        extract("wmt16-en-ro", tmp_path, tmp_path)


def test_compressed_members(tmp_path: Path) -> None:
    """The 10^9 corpus is a plain archive of compressed texts."""
    for corpus in SETS["wmt14-en-fr"].train:
        kind = "w" if "giga" in corpus.members else "w:gz"
        members = {f"training/{corpus.members.format(x)}": b"x\n" for x in ("en", "fr")}
        if kind == "w":
            members = {name: gzip.compress(b"10^9\n") for name in members}
        write_tar(tmp_path / corpus.downloads[0].name, members, kind)
    write_tar(
        tmp_path / "training-parallel-europarl-v7.tgz",
        {f"training/europarl-v7.{p}": b"x\n" for p in ("fr-en.en", "fr-en.fr", "de-en.en")},
    )
    for split in ("valid", "test"):
        for x in ("en", "fr"):
            (tmp_path / f"{split}.{x}").write_text("y\n")
    found = extract("wmt14-en-fr", tmp_path, tmp_path)
    assert lines(found, "train.raw.fr") == ["x"] * 4 + ["10^9"]


def test_sentences_of_iwslt(tmp_path: Path) -> None:
    talk = ["<title>{x} 1</title>", "<keywords>no</keywords>", "<talkid>7</talkid>", "{x} 2"]
    members = {}
    for x in ("de", "en"):
        members[f"de-en/train.tags.de-en.{x}"] = "\n".join([*talk, ""]).format(x=x).encode()
        for number, name in enumerate(wmt_sets.IWSLT_TESTS):
            xml = f'<title>no</title>\n<seg id="1"> {x} t{number} </seg>\n</doc>\n'
            members[f"de-en/IWSLT14.{name}.de-en.{x}.xml"] = xml.encode()
    write_tar(tmp_path / "de-en.tgz", members)
    found = extract("iwslt14-de-en", tmp_path, tmp_path)
    assert lines(found, "train.raw.en") == ["en 1", "en 2"]
    assert lines(found, "test.raw.en") == [f"en t{number}" for number in range(5)]


# -- tokens and subwords


def test_tokens_are_those_of_moses_in_lower_case_where_the_set_says_so() -> None:
    line = "Er sagte: „Das ist ein Test-Satz & mehr.“"
    tokens = 'Er sagte : " Das ist ein Test-Satz & mehr . "'
    assert wmt_steps._tokenised("de", SETS["wmt14-en-de"], line) == tokens
    assert wmt_steps._tokenised("de", SETS["iwslt14-de-en"], "Das!") == "das !"
    assert wmt_steps._tokenised("ja", SETS["wat17-en-ja"], "A, b.") == "A, b."


def test_romanian_has_commas_below_its_letters() -> None:
    with_cedillas, with_commas = (
        "A\u015fa \u0162ar\u0103 \u0163i \u015e.",
        "A\u0219a \u021aar\u0103 \u021bi \u0218 .",
    )
    assert wmt_steps._tokenised("ro", SETS["wmt16-en-ro"], with_cedillas) == with_commas
    assert wmt_steps._tokenised("en", SETS["wmt16-en-ro"], "\u015e.") == "\u015e ."


def test_every_23rd_of_the_clean_pairs_of_iwslt_is_held_out(tmp_path: Path) -> None:
    """Cut by length and ratio in tokens first, as fairseq's script does it, and not again in pieces."""
    pairs = [(f"Das {number}", f"That {number}") for number in range(1, 47)]
    for place, pair in ((3, ("", "x")), (10, ("a b c d", "a b")), (30, ("a " * 176, "a " * 176))):
        pairs.insert(place, pair)
    longest = " ".join(str(997 * number) for number in range(175))
    pairs.append((longest, longest))
    text, tokens = tmp_path / "text", tmp_path / "tokens"
    for folder in (text, tokens):
        folder.mkdir()
    for side, language in enumerate(("de", "en")):
        content = "".join(pair[side].strip() + "\n" for pair in pairs)
        wmt_steps.text_file(text, "train", language).write_text(content)
        wmt_steps.text_file(text, "valid", language).touch()
        wmt_steps.text_file(text, "test", language).write_text("x\n" + "y " * 300 + "\n")
    arguments = {"set": "iwslt14-de-en", "text": str(text), "output": str(tokens)}
    wmt_steps.tokenise(argparse.Namespace(**arguments, workers=1))
    assert lines(tokens, "valid.raw.de") == ["das 23", "das 46"]
    train = [f"that {number}" for number in range(1, 47) if number % 23]
    assert lines(tokens, "train.raw.en") == [*train, longest]
    assert len(lines(tokens, "test.raw.de")) == 2
    counts = json.loads((tokens / "counts.json").read_text())
    assert counts == {
        "train, kept": 47,
        "train, empty": 1,
        "train, of too different lengths": 1,
        "train, too long": 1,
    }

    pieces = tmp_path / "pieces"
    pieces.mkdir()
    arguments = {"set": "iwslt14-de-en", "text": str(tokens), "output": str(pieces)}
    wmt_steps.subwords(argparse.Namespace(**arguments, vocabulary=40))
    assert len(lines(pieces, "train.de")) == 45  # the long one too, though it has more pieces
    assert max(len(line.split()) for line in lines(pieces, "train.de")) > 175


@pytest.mark.parametrize(
    ("source", "target", "fault"),
    [
        (250, 250, ""),
        (251, 250, "too long"),
        (30, 20, ""),
        (20, 30, ""),
        (31, 20, "of too different lengths"),
        (20, 31, "of too different lengths"),
        (0, 5, "empty"),
        (5, 0, "empty"),
    ],
)
def test_limits_of_training_pairs(source: int, target: int, fault: str) -> None:
    assert wmt_steps.fault_of(source, target, SETS["wmt14-en-de"]) == fault


def test_sets_without_limits() -> None:
    assert wmt_steps.fault_of(1, 999, SETS["multi30k-en-de"]) == ""
    assert wmt_steps.fault_of(1, 200, SETS["wat17-en-ja"]) == ""


def test_only_training_pairs_are_left_out_and_pieces_give_the_text_back(tmp_path: Path) -> None:
    import sentencepiece

    for split in ("train", "valid", "test"):
        for x in ("en", "de"):
            words = [f"{x} abc {number} def" for number in range(20)] + ["ab" * 40, ""]
            if x == "de":
                words[-2] = "a"
            path = wmt_steps.text_file(tmp_path, split, x)
            path.write_text("".join(w + "\n" for w in words))
    output = tmp_path / "subwords"
    output.mkdir()
    arguments = {"set": "wmt14-en-de", "text": str(tmp_path), "output": str(output)}
    wmt_steps.subwords(argparse.Namespace(**arguments, vocabulary=60))
    counts = json.loads((output / "counts.json").read_text())
    assert counts["train, kept"] == 20
    assert counts["train, empty"] == counts["train, of too different lengths"] == 1
    assert counts["valid, kept"] == counts["test, kept"] == 22
    model = sentencepiece.SentencePieceProcessor(model_file=str(output / "spm.model"))
    assert [model.decode(line.split()) for line in lines(output, "test.en")] == lines(
        tmp_path, "test.raw.en"
    )
