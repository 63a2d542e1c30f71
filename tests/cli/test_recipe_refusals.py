"""What a recipe refuses, in one sentence and before any work: its name, arguments, settings and the sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_paper_recipes import MAKE, TINY
from tests.cli.wmt_files import recipe

WORK = "{tmp}/work"
GEOMETRY, SETTING = "geometry '{}' in GEOMETRIES", "unknown setting '{}' in SETTINGS"


def multi30k(
    name: str, settings: dict[str, str], said: str
) -> tuple[str, str, dict[str, str], str]:
    return f"interleaved_{name}", "", settings, said


def wmt(settings: dict[str, str], said: str) -> tuple[str, str, dict[str, str], str]:
    return "interleaved_wmt", f"wmt16-en-ro {WORK}", settings, said


REFUSED: list[tuple[str, str, dict[str, str], str]] = [
    ("blockwise_wmt14", "", {"SETTINGS": "regular tuned"}, SETTING.format("tuned")),
    ("blockwise_wmt14", "", {"BASE": "gone.pt"}, "gone.pt does not exist (BASE, TEACHER)"),
    ("blockwise_wmt14", "", {"DATA": "."}, "holds no binarised data"),
    (
        "gad_wmt",
        f"wmt14-en-de {WORK}",
        {"SIZE": "huge"},
        "unknown SIZE 'huge' (choose from: base big)",
    ),
    ("lattice_wmt", f"wmt18-en-ru {WORK}", {}, "iwslt14-de-en wmt14-en-de wmt16-en-ro"),
    (
        *("lattice_wmt", f"wmt14-en-de {WORK}", {"FAST_ALIGN": "gone"}),
        "there is no program FAST_ALIGN=gone",
    ),
    ("wmt_data", f"wmt14-en-xx {WORK}", {}, "wmt14-en-xx"),
    ("wmt_data", f"wmt14-en-xx {WORK}", {}, "iwslt14-de-en"),
    ("multi30k", "{tmp}/typo", {}, "typo does not exist"),
    multi30k("multi30k", {"GEOMETRIES": "2"}, GEOMETRY.format("2")),
    multi30k("multi30k", {"GEOMETRIES": "2x1 3x1"}, GEOMETRY.format("3x1")),
    multi30k("multi30k", {"GEOMETRIES": "2x0"}, GEOMETRY.format("2x0")),
    multi30k("multi30k", {"ABLATIONS": "vanilla"}, "unknown ablation 'vanilla' in ABLATIONS"),
    multi30k("multi30k", {"SETTINGS": "both"}, SETTING.format("both")),
    multi30k("multi30k", {"START": "cold"}, "unknown START 'cold' (choose from: warm scratch)"),
    multi30k("ua_gec", {"GEOMETRIES": "2"}, GEOMETRY.format("2")),
    multi30k("ua_gec", {"GEOMETRIES": "3x1"}, GEOMETRY.format("3x1")),
    wmt({"GEOMETRIES": "two"}, GEOMETRY.format("two")),
    wmt({"GEOMETRIES": "2x1 3x1"}, GEOMETRY.format("3x1")),
    wmt({"GEOMETRIES": "2x1+nonsense"}, GEOMETRY.format("2x1+nonsense")),
    wmt({"STUDENTS": "0x1"}, "geometry '0x1' in STUDENTS"),
    wmt({"SETTINGS": "both"}, SETTING.format("both")),
    wmt({"LENGTH_PENALTY": "none"}, "unknown length penalty 'none' in LENGTH_PENALTY"),
    wmt({"DIRECTION": "de-en"}, "choose from: en-ro ro-en"),
    *[
        (
            "interleaved_summaries",
            "{tmp}/never",
            {"GEOMETRIES": geometry},
            GEOMETRY.format(geometry),
        )
        for geometry in ("3x1", "2x1+nonsense", "2")
    ],
    *[(name, "{tmp}/never", TINY, "does not exist") for name in MAKE],
]


@pytest.mark.parametrize(("name", "arguments", "settings", "said"), REFUSED)
def test_refused_before_any_work(
    name: str, arguments: str, settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    def filled(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path))

    given = {"WORK": filled(WORK), "GPUS": "0"} | {
        key: filled(one) for key, one in settings.items()
    }
    result = recipe(name, *filled(arguments).split(), **given)
    assert result.returncode == 2
    assert said in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
