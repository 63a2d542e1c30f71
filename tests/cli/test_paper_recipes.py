"""The recipes for the paper's own data sets, on a few made-up lines in the real file formats."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.wmt_files import recipe, recorders

RECIPES = ("bea2019", "nlpcc18", "wikilarge")

TINY = {
    "ARCH": "transformer",
    "LAYERS": "1+1",
    "MODEL_FLAGS": "--encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2",
    "VOCABULARY": "500",
    "MAX_UPDATE": "30",
    "MAX_TOKENS": "600",
    "UPDATE_FREQ": "1",
    "WARMUP": "10",
    "LR": "0.01",
    "AVERAGE": "1",
    "DECODE_FLAGS": "--max-len-b 30",
    "GPUS": "0",
    "DEVICE_FLAGS": "--cpu",
}


def run_recipe(
    name: str, data: Path, work: Path, settings: dict[str, str] = TINY, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe, with tiny settings by default, from another folder than the checkout."""
    return recipe(name, data, cwd=work.parent, **settings | {"WORK": str(work)} | env)


def write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


# -- made-up data

SUBJECTS = ("she", "the old man", "my friend", "a student")
OBJECTS = ("a book", "the news", "an apple", "two letters", "it")


def m2_block(number: int, annotators: int = 1) -> list[str]:
    """A sentence with a wrong verb; a second annotator wants another verb or no change."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    words = f"{subject} have {OBJECTS[number % len(OBJECTS)]} .".split()
    verb = words.index("have")
    lines = ["S " + " ".join(words)]
    lines.append(f"A {verb} {verb + 1}|||R:VERB:SVA|||has|||REQUIRED|||-NONE-|||0")
    if annotators > 1 and number % 2:
        lines.append(f"A {verb} {verb + 1}|||Vt|||had||owns|||REQUIRED|||-NONE-|||1")
    elif annotators > 1:
        lines.append("A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1")
    return [*lines, ""]


def m2_lines(sentences: int, annotators: int = 1) -> list[str]:
    return [line for number in range(sentences) for line in m2_block(number, annotators)]


def make_bea2019(data: Path) -> int:
    """The corpora as their archives unpack; returns the number of CoNLL-2014 sentences."""
    write(data / "lang8.train.auto.bea19.m2", m2_lines(12))
    write(data / "release3.3" / "bea2019" / "nucle.train.gold.bea19.m2", m2_lines(8))
    write(data / "fce" / "m2" / "fce.train.gold.bea19.m2", m2_lines(6))
    write(data / "wi+locness" / "m2" / "ABC.train.gold.bea19.m2", m2_lines(6))
    conll13 = data / "release2.3.1"
    write(conll13 / "original" / "data" / "official-preprocessed.m2", m2_lines(5))
    write(conll13 / "revised" / "data" / "official-preprocessed.m2", ["S not this one"])
    conll14 = data / "conll14st-test-data" / "noalt" / "official-2014.combined.m2"
    write(conll14, m2_lines(7, annotators=2))
    return 7


def make_nlpcc18(data: Path) -> int:
    names, foods = ("我", "他", "小王", "老师"), ("苹果", "米饭", "鱼", "面包")
    train = []
    for number in range(24):
        name, food = names[number % 4], foods[number // 4 % 4]
        wrong, right = f"{name}喜欢吃吃{food}。", f"{name}喜欢吃{food}。"
        corrections = [[], [right], [right, f"{name}爱吃{food}。"]][number % 3]
        source = wrong if corrections else right
        train.append("\t".join([str(number + 1), str(len(corrections)), source, *corrections]))
    write(data / "trainingdata" / "data.train", [*train, "25\t3\t我。\t你。"])
    gold = []
    for name in names:
        gold.append(f"S {name} 喜欢 吃 吃 鱼 。")
        gold.append("A 2 3|||R|||-NONE-|||REQUIRED|||-NONE-|||0")
        gold.append("A 1 4|||S|||爱 吃|||REQUIRED|||-NONE-|||1")
        gold.append("")
    write(data / "testdata" / "gold.01", gold)
    return len(names)


def make_wikilarge(data: Path) -> int:
    complex_ = [f"{s} have purchased {o} ." for s in SUBJECTS for o in OBJECTS]
    simple = [f"{s} bought {o} ." for s in SUBJECTS for o in OBJECTS]
    wiki, turk = data / "data-simplification" / "wikilarge", data / "turkcorpus"
    for split, size in (("train", 20), ("valid", 5)):
        write(wiki / f"wiki.full.aner.ori.{split}.src", complex_[:size])
        write(wiki / f"wiki.full.aner.ori.{split}.dst", simple[:size])
    write(turk / "test.8turkers.tok.norm", [line.capitalize() for line in complex_[:6]])
    for number in range(8):
        references = simple if number % 2 else complex_
        write(turk / f"test.8turkers.tok.turk.{number}", references[:6])
    return 6


MAKE = {"bea2019": make_bea2019, "nlpcc18": make_nlpcc18, "wikilarge": make_wikilarge}


# -- what is missing


@pytest.mark.parametrize("name", RECIPES)
def test_all_missing_files_are_named_at_once_before_any_work(name: str, tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    MAKE[name](data)
    present = sorted(
        path for path in data.rglob("*") if path.is_file() and "revised" not in str(path)
    )
    gone = present[:2]
    for path in gone:
        path.unlink()
    result = run_recipe(name, data, work)
    assert result.returncode == 2
    assert "2 of the files" in result.stderr
    for path in gone:
        assert path.name in result.stderr
    assert not any(path.name in result.stderr for path in present[2:] if path.name != gone[0].name)
    assert result.stderr.count("http") >= 2
    assert not work.exists()


def test_missing_synthetic_text_is_named(tmp_path: Path) -> None:
    make_bea2019(tmp_path / "data")
    prefix = tmp_path / "synthetic"
    result = run_recipe("bea2019", tmp_path / "data", tmp_path / "work", SYNTHETIC=str(prefix))
    assert result.returncode == 2
    assert f"{prefix}.src" in result.stderr
    assert f"{prefix}.tgt" in result.stderr


def test_malformed_data_is_named_by_file_and_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_nlpcc18(data)
    train = data / "trainingdata" / "data.train"
    write(train, ["1\t0\t好。", "no tabs here"])
    result = run_recipe("nlpcc18", data, tmp_path / "work", VALID_SIZE="1")
    assert result.returncode != 0
    assert f"{train}:2" in result.stderr


# -- settings; nothing is computed

TABLE_11 = (
    "--max-tokens 5120",
    "--adam-betas (0.9, 0.98) --adam-eps 1e-8 --weight-decay 0.0",
    "--lr-scheduler inverse_sqrt",
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1",
)


@pytest.mark.parametrize(
    ("synthetic", "gpus", "expected"),
    [
        (False, "4", ["--update-freq 4", "--max-epoch 60", "--warmup-updates 4000"]),
        (False, "2", ["--update-freq 8", "--arch transformer_vaswani_wmt_en_de_big"]),
        (True, "1", ["--update-freq 64", "--max-epoch 10", "--lr 0.0003 --warmup-updates 8000"]),
        (False, "0", ["--update-freq 16", "--cpu"]),
    ],
)
def test_hyper_parameters_of_table_11(
    synthetic: bool, gpus: str, expected: list[str], tmp_path: Path
) -> None:
    """As many tokens an update on any number of GPUs."""
    make_bea2019(tmp_path / "data")
    settings = recorders(tmp_path) | {"GPUS": gpus}
    if synthetic:
        settings["SYNTHETIC"] = str(tmp_path / "synthetic")
        for side in ("src", "tgt"):
            write(tmp_path / f"synthetic.{side}", ["a b c"])
    run_recipe("bea2019", tmp_path / "data", tmp_path / "work", settings)
    commands = (tmp_path / "calls").read_text().splitlines()
    flags = next(line for line in commands if line.startswith("fairseq-train"))
    for flag in (*TABLE_11, *expected):
        assert flag in flags
    assert ("--cpu" in flags) == (gpus == "0")


# -- the real thing


def check_results(work: Path, sentences: dict[str, int], systems: Sequence[str]) -> None:
    """Every system on every set, and lossless decoding without a difference."""
    rows = json.loads((work / "results.json").read_text())["results"]
    assert [(row["set"], row["system"]) for row in rows] == [
        (name, system) for name in sentences for system in systems
    ]
    scores = {}
    for row in rows:
        assert row["sentences"] == sentences[row["set"]]
        assert row["seconds"] > 0
        assert "--required-batch-size-multiple 1" in row["command"]
        key = (row["set"], row["system"])
        scores[key] = {
            name: row[name] for name in row if name in ("P", "R", "F0.5", "SARI", "BLEU")
        }
        assert ("tokens per iteration" in row) == (row["system"] in ("greedy", "iad"))
        if row["system"] != "beam5":
            assert row["different"] == 0
            assert scores[key] == scores[row["set"], "beam1"]
    assert all(scores.values())


def test_bea2019_with_pretraining(tmp_path: Path) -> None:
    data, work, synthetic = tmp_path / "data", tmp_path / "work", tmp_path / "synthetic"
    n_test = make_bea2019(data)
    write(tmp_path / "synthetic.src", ["she have the old book .", "two student reads ."] * 8)
    write(tmp_path / "synthetic.tgt", ["she has the old book .", "two students read ."] * 8)
    result = run_recipe(
        "bea2019", data, work, SYNTHETIC=str(synthetic), SYSTEMS="beam1 iad", LAYERS="2+1"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert (work / "text" / "train.src").read_text().count("\n") == 32
    check_results(work, {"conll13": 5, "conll14": n_test}, ("beam1", "iad"))
    assert "loaded checkpoint" in (work / "train" / "train.log").read_text().lower()


def test_nlpcc18(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    n_test = make_nlpcc18(data)
    result = run_recipe("nlpcc18", data, work, VALID_SIZE="4", SYSTEMS="beam1 greedy iad")
    assert result.returncode == 0, result.stderr[-3000:]
    assert "1 training lines with another number" in result.stdout
    check_results(work, {"test": n_test}, ("beam1", "greedy", "iad"))
    result = run_recipe("nlpcc18", data, work, VALID_SIZE="4", SYSTEMS="beam1", SEGMENTER="cat")
    assert "NLPCC-2018, over words" in result.stdout and result.stderr.count("start") == 1


def test_wikilarge(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    n_test = make_wikilarge(data)
    result = run_recipe("wikilarge", data, work, SYSTEMS="beam5 beam1 iad")
    assert result.returncode == 0, result.stderr[-3000:]
    assert (work / "text" / "test.src").read_text().startswith("she have purchased")
    check_results(work, {"test": n_test}, ("beam5", "beam1", "iad"))
