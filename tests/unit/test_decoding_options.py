"""The decoding options: one reading for every kind of configuration, old names that work, no option without a word."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import fields, replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from fairseq_aggdec.methods import gad
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.kinds import KINDS, VERIFIED
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.options.settings import VARIANTS, Settings, spelling
from fairseq_aggdec.methods.table import method_of, unused
from fairseq_aggdec.tasks.decoding_options import _values
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from tests.random_models import make_model, make_task


def parsed(words: str) -> Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    TranslationAggdecTask.add_args(parser)
    return parser.parse_args(["data", *words.split()])


def meant(cfg: Any) -> dict[str, Any]:
    return vars(replace(read_settings(cfg), said=frozenset()))


@pytest.mark.parametrize(
    "words",
    [
        "--decoding gad --draft-tokens 3 --acceptance top-beta:3:2.5",
        "--decoding interleaved --variant dedup=2 --variant stop-rule=any",
        "--decoding lattice --variant lattice-least-probability=0.5",
        "--decoding beam --low-memory --int8",
    ],
)
def test_all_kinds_of_configurations_say_the_same(words: str) -> None:
    """The command line, a configuration of hydra, a dictionary as checkpoints and callers have it."""
    found = parsed(words)
    expected = meant(found)
    assert expected != meant(parsed(" ".join(words.split()[:2])))
    said = {name: value for name, value in vars(found).items() if name != "data"}
    structured = OmegaConf.structured(DecodingConfig)
    ours = {name: said[name] for name in DecodingConfig.__dataclass_fields__.keys() & said.keys()}
    for name, value in ours.items():
        structured[name] = value
    for form in (said, structured, DecodingConfig(**ours)):
        assert meant(form) == expected
    assert (
        meant({name: value for name, value in said.items() if value not in (None, False)})
        == expected
    )


def test_the_help_shows_what_an_option_takes() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    TranslationAggdecTask.add_args(parser)
    shown = parser.format_help()
    assert "--draft-tokens auto|N|all" in shown and "--int8 [none|drafts|all]" in shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--variant dedub=2", "--variant dedub=2: give key=value with a key of iad-match, end-"),
        ("--variant dedup", "--variant dedup: give key=value with a key of iad-match, end-"),
        ("--variant dedup=x", "--variant dedup=x: give a whole number"),
        ("--variant lattice-least-probability=x", "--variant lattice-.*=x: give a number"),
        ("--variant stop-rule=all", "--variant stop-rule=all: choose stock or any"),
        ("--acceptance top-kk", "--acceptance top-kk: give exact, top-beta:RANK:NATS, top-k:RANK"),
        ("--acceptance top-k:a", "--acceptance top-k:a: give exact, "),
        ("--acceptance top-k:2:3", "--acceptance top-k:2:3: give exact, "),
        ("--acceptance top-k,top-beta", "--acceptance top-k,top-beta: give exact, "),
        ("--acceptance min", "--acceptance min: give exact, "),
        ("--acceptance top-k:0", "--acceptance top-k:0: the rank must be at least 1"),
        ("--acceptance min:0", "--acceptance min:0: the number .* must be at least 1"),
    ],
)
def test_a_wrong_value_is_answered_by_the_right_ones(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}[^\n]*$"):
        read_settings(parsed(given))


def test_of_several_values_of_a_variant_the_last_counts() -> None:
    found = read_settings(parsed("--variant dedup=2,stop-rule=any --variant dedup=3"))
    assert (found.dedup, found.stop_rule) == (3, "any")


def test_int8_alone_means_all(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    TranslationAggdecTask.add_args(parser)
    for words in ("data --int8", "--int8 data", "--int8 --decoding iad data", "data --int8 all"):
        found = parser.parse_args(words.split())
        assert (found.data, found.int8) == ("data", "all"), words
    assert parser.parse_args(["--int8", "drafts", "data"]).int8 == "drafts"
    with pytest.raises(SystemExit):
        parser.parse_args(["data", "--int8", "sums"])
    assert "--int8 sums: choose none, drafts, all" in capsys.readouterr().err
    modes = {
        True: "all",
        False: None,
        "true": "all",
        "drafts": "drafts",
        None: None,
        "none": "none",
    }
    assert {value: read_settings({"int8": value}).int8 for value in modes} == modes


def test_missing_options_have_their_defaults() -> None:
    assert meant({}) == meant(Namespace()) == meant(DecodingConfig()) == vars(Settings())


# Every option with a value that is not its default.
GIVEN: dict[str, Any] = {
    "draft_file": "drafts",
    "drafter_path": "drafter.pt",
    "draft_tokens": "2",
    "draft_tree": "4",
    "acceptance": "top-k:3",
    "int8": "all",
    "strict": 4,
    "shortlist": 3,
    "lattice": "tables",
    "no_graphs": True,
    "low_memory": True,
    "call_price": "usual",
    "draft_from": "source",
} | {
    f"variant {key}": f"{key}={one.choices[-1] if one.choices else 2}"
    for key, one in VARIANTS.items()
    if key != "iad-match"
}
GIVEN["variant iad-match"] = "iad-match=unique"


class Watched(Settings):
    """Settings that remember which of them were looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name in Settings.__dataclass_fields__:
            vars(self).setdefault("seen", set()).add(name)
        return object.__getattribute__(self, name)


def test_every_option_is_given_here() -> None:
    names = {field.name for field in fields(DecodingConfig)} - {"_name", "bf16", "decoding"}
    assert {name.split()[0] for name in GIVEN} == names
    assert {name.split()[1] for name in GIVEN if " " in name} == VARIANTS.keys()


@pytest.mark.parametrize("source", ["auto", "source", "file", "none"])
@pytest.mark.parametrize("decoding", KINDS)
def test_every_option_is_read_or_announced(
    decoding: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that is not announced is refused, or looked at when the generator is built."""
    model = make_model(make_task(), 1, "blockwise_transformer", block_size=3)
    if decoding == "interleaved":
        model = make_model(make_task(), 1, "interleaved_transformer")
    drafter = make_model(make_task(), 1, "nar_drafter", block_size=3)
    monkeypatch.setattr(gad, "load_drafter", lambda *_: drafter)
    monkeypatch.setattr(Request, "make", lambda *_: None)
    read = 0
    for option, value in GIVEN.items():
        said = {"drafter_path": "x", "draft_file": __file__ if source == "file" else None}
        said |= {"decoding": decoding, "draft_from": source, option.split()[0]: value}
        settings, name = (
            read_settings(said, always_draft=True),
            option.split()[-1].replace("-", "_"),
        )
        if spelling(name) in unused(settings, method_of(decoding)) or name not in settings.said:
            continue
        watched = Watched(**vars(settings))
        request = Request(watched, make_task(decoding), [model], Namespace(beam=5), lambda: None)
        vars(watched)["seen"].clear()
        try:
            method_of(decoding).build(request)
        except (ValueError, FileNotFoundError):
            continue  # refused, in one sentence
        assert name in vars(watched)["seen"], f"{option} is neither read nor announced"
        read += 1
    assert read or decoding in ("stock", "lattice")


@pytest.mark.parametrize("name", ["low_memory", "no_graphs"])
@pytest.mark.parametrize("value", [0, "0", "false", "False", None])
def test_a_switch_that_a_caller_turns_off(name: str, value: Any) -> None:
    assert read_settings({name: value}) == Settings()


@pytest.mark.parametrize("value", ["x", 2.5, [2]])
@pytest.mark.parametrize("name", ["strict", "shortlist"])
def test_what_is_no_whole_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} .*: give a whole number"):
        read_settings({name: value})


def test_no_acceptance_is_the_exact_one() -> None:
    assert read_settings({"acceptance": None}) == Settings()


def test_the_verified_methods_are_those_that_read_the_option() -> None:
    reading = [name for name in KINDS if "shortlist" in method_of(name).reads(Settings(name))]
    assert reading == list(VERIFIED)


def test_an_option_that_stands_nowhere_is_not_set() -> None:
    """A part of a configuration whose other sections are missing, as scripts of one's own make it."""
    whole = OmegaConf.create({"task": {"bf16": "${common.bf16}", "decoding": "iad"}})
    assert _values(whole.task, ["bf16", "decoding"]) == {"bf16": False, "decoding": "iad"}
