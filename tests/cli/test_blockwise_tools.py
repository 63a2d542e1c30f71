"""The scripts around blockwise models: table and trace, on random models."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

import fairseq_aggdec  # noqa: F401  (registers the architecture)
from tests.support import random_sources

SENTENCES, HEADS = 9, 4
ARCHITECTURES = {
    "base": ["--arch", "transformer"],
    "heads": ["--arch", "blockwise_transformer", "--block-size", str(HEADS)],
}


def script(name: str) -> ModuleType:
    """A tool of ``aggdec``, or a module of the recipes."""
    return importlib.import_module(name if "." in name else f"fairseq_aggdec.cli.{name}")


def write_model(path: Path, data: Path, arch: str, seed: int = 1) -> None:
    """A model whose heads propose all sorts of things, as fairseq-train would write it."""
    parser = options.get_training_parser(default_task="translation")
    sizes = ["--encoder-layers=1", "--decoder-layers=1", "--share-all-embeddings"]
    for side in ("encoder", "decoder"):
        sizes += [
            f"--{side}-embed-dim=16",
            f"--{side}-ffn-embed-dim=32",
            f"--{side}-attention-heads=2",
        ]
    languages = ["-s", "src", "-t", "tgt"]
    args = options.parse_args_and_arch(
        parser, input_args=[str(data), *ARCHITECTURES[arch], *sizes, *languages]
    )
    config = convert_namespace_to_omegaconf(args)
    torch.manual_seed(seed)
    model = tasks.setup_task(config.task).build_model(config.model)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    state: dict[str, Any] = {"args": None, "model": model.state_dict()}
    state["cfg"] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    state["optimizer_history"] = [{"num_updates": 70, "best_loss": 0.0, "lr_scheduler_state": {}}]
    state["last_optimizer_state"] = None
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in both languages, a model with heads and one without."""
    tmp_path = tmp_path_factory.mktemp("blockwise")
    dictionary = Dictionary()
    for index in range(30):
        dictionary.add_symbol(f"w{index}")
    for side in ("src", "tgt"):
        dictionary.save(str(tmp_path / f"dict.{side}.txt"))
        rows = random_sources(len(side), SENTENCES)
        text = "".join(" ".join(f"w{word % 30}" for word in row) + "\n" for row in rows)
        (tmp_path / f"test.src-tgt.{side}").write_text(text)
    write_model(tmp_path / "base.pt", tmp_path, "base")
    write_model(tmp_path / "heads.pt", tmp_path, "heads")
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of them that a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def data_arguments(folder: Path) -> list[str]:
    """Command line for the sentences of ``folder``."""
    languages = ["-s", "src", "-t", "tgt", "--gen-subset", "test", "--dataset-impl", "raw"]
    return [str(folder), *languages, "--cpu", "--max-len-b", "12"]


# -- table: every rule of every model, once


class Table:
    """The script on a folder, counting what is decoded."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.script = script("scripts.recipes.blockwise.table")
        self.decoded: Counter[str] = Counter()
        real_decode, real_measure = self.script.decode, self.script.measure

        def decode(session: Any, decoding: str, limit: int | None) -> Any:
            self.decoded[decoding] += 1
            return real_decode(session, decoding, limit)

        def measure(*arguments: Any, **keywords: Any) -> Any:
            self.decoded["timed"] += 1
            return real_measure(*arguments, **keywords)

        monkeypatch.setattr(self.script, "decode", decode)
        monkeypatch.setattr(self.script, "measure", measure)

    @property
    def output(self) -> Path:
        return self.folder / "results" / "table"

    def run(self, *more: str, models: tuple[str, ...] = ("plain/1=base.pt", "plain/4=heads.pt")):
        self.decoded.clear()
        named = [item.replace("=", f"={self.folder}/") for item in models]
        data = [*data_arguments(self.folder), "--batch-size", "4"]
        options = ["--time-sentences", "2", "--repeats", "1", "--output", str(self.output)]
        self.script.main([*data, *options, "--models", *named, *more])
        return json.loads(self.output.with_suffix(".json").read_text())


@pytest.fixture
def table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(folder, monkeypatch)


def test_every_rule_is_measured(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    record = table.run()
    assert table.decoded == {"stock": 2, "blockwise": len(table.script.RULES), "timed": 1}
    rules = ["exact", "top-2", "top-3", "minimum block 2", "minimum block 3"]
    found = [(score["model"], score["rule"]) for score in record["results"]]
    stock = "stock --beam 1"
    assert found == [("plain/1", stock), *(("plain/4", rule) for rule in (stock, *rules))]
    scores = {score["rule"]: score for score in record["results"][1:]}
    assert {score["sentences"] for score in record["results"]} == {SENTENCES}
    assert scores["exact"]["differ"] == 0
    assert scores["exact"]["bleu"] == scores[stock]["bleu"]
    assert scores["minimum block 2"]["mean_accepted"] > 1.5
    assert scores["minimum block 3"]["mean_accepted"] > scores["minimum block 2"]["mean_accepted"]
    assert [speed["rule"] for speed in record["speeds"]] == rules
    assert all(speed["speedup"] > 0 for speed in record["speeds"])
    text = table.output.with_suffix(".md").read_text()
    exact = scores["exact"]
    assert "| k | plain |\n|---|---|\n| 1 | " in text
    assert exact["accepted_block"] >= exact["mean_accepted"]
    cell = f"{exact['bleu']:.2f} / {exact['mean_accepted']:.2f} ({exact['accepted_block']:.2f})"
    assert f"| 4 | {cell} |" in text
    assert f"| plain/4 | 70 | exact | {exact['bleu']:.2f} |" in text
    assert capsys.readouterr().out.strip() in text
    assert "<svg" in Path(f"{table.output}-speedup.svg").read_text()


def test_no_minimum_above_the_block(table: Table) -> None:
    record = table.run("--draft-tokens", "2", models=("plain/2=heads.pt",))
    rules = ["exact", "top-2", "top-3", "minimum block 2"]
    assert [score["rule"] for score in record["results"]] == ["stock --beam 1", *rules]
    assert [speed["rule"] for speed in record["speeds"]] == rules


def test_bleu_on_tokens(table: Table) -> None:
    options = ("--time-sentences", "0", "--limit", "4")
    models = ("plain/1=base.pt",)
    (text,) = table.run(*options, models=models)["results"]
    (tokens,) = table.run(*options, "--bleu", "compound", models=models)["results"]
    assert "tok:13a" in text["signature"] and "compounds" not in text["signature"]
    assert "tok:none" in tokens["signature"] and "compounds split" in tokens["signature"]
    assert tokens["signature"] in table.output.with_suffix(".md").read_text()


def test_no_times(table: Table) -> None:
    record = table.run("--time-sentences", "0")
    assert record["speeds"] == [] and table.decoded["timed"] == 0
    assert not Path(f"{table.output}-speedup.svg").exists()


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        (("plain/4",), (), "give SETTING/K=FILE"),
        (("plain/4=gone.pt",), (), "there is no such file"),
        (("a/4=heads.pt", "a/4=base.pt"), (), "two models are called a/4"),
        (("a/4=heads.pt",), ("--repeats", "0"), "--repeats at least 1"),
    ],
)
def test_refused_before_anything_is_decoded(
    models: tuple[str, ...], more: tuple[str, ...], message: str, table: Table
) -> None:
    with pytest.raises(SystemExit, match=message):
        table.run(*more, models=models)
    assert table.decoded == {}


# -- trace


def test_traces_show_block_after_block(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pages" / "report.html"
    options = ["--path", str(folder / "heads.pt"), "--acceptance", "min:2", "--report", str(page)]
    script("trace").main(
        [*data_arguments(folder), "--decoding", "blockwise", *options, "--sentences", "7", "2"]
    )
    printed = capsys.readouterr().out
    texts = (folder / "test.src-tgt.src").read_text().splitlines()
    shown = re.findall(r"^input +(.*)$", printed, re.MULTILINE)
    assert shown == [texts[7], texts[2]]
    gained = [int(found) for found in re.findall(r"^ +\d+ +(\d+) tokens? ", printed, re.MULTILINE)]
    written = [int(found) for found in re.findall(r"one token at a time: (\d+)", printed)]
    assert sum(gained) == sum(written)
    assert max(gained) >= 2  # of a block of at least two
    assert "though the verifier would have written another token" in printed
    assert page.read_text().count("one token at a time") == 2
