"""Records tests/unit/scores_of_others.json: what the programs of other authors score.

    python -m tests.origins.scores M2SCORER OTEM EASSE

Each is a folder: checkouts of github.com/nusnlp/m2scorer (MaxMatch, version 3.2), github.com/DeepLearnXMU/Otem-Utem
(OTEM and UTEM) and github.com/feralvam/easse (SARI). m2scorer is written for Python 2: a copy is converted by 2to3 and
reads files in binary, as Python 2 does. 2to3 is part of Python up to 3.12. EASSE needs the package sacremoses.

Sentences are random words of a small alphabet, so that matches are frequent and ambiguous.
"""

from __future__ import annotations

import importlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "unit" / "scores_of_others.json"
SETS = 40
Case = dict[str, Any]

PYTHON_2 = """
import builtins, runpy, sys
folder, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, folder)
import levenshtein, util
real = builtins.open
builtins.open = lambda name, mode="r": real(name, "rb" if mode == "r" else mode)
runpy.run_path(folder + "/m2scorer.py", run_name="__main__")
"""


def sentence(draw: random.Random, least: int, most: int) -> list[str]:
    return [draw.choice("abcde") for _ in range(draw.randint(least, most))]


def edits(draw: random.Random, source: list[str]) -> list[tuple[int, int, str]]:
    """Up to three edits of an annotator, apart from each other."""
    found, place = [], 0
    while place < len(source) and len(found) < 3:
        start = draw.randint(place, len(source))
        end = min(len(source), start + draw.randint(0, 4))
        text = " ".join(sentence(draw, 0 if end > start else 1, 4))
        if draw.random() < 0.6 and text != " ".join(source[start:end]):
            found.append((start, end, text))
        place = end + 1
    return found


def corrected(draw: random.Random, source: list[str], gold: list[tuple[int, int, str]]) -> str:
    """The source with most of the gold edits, and sometimes a change of its own."""
    words, place = list[str](), 0
    for start, end, text in gold:
        if draw.random() < 0.7:
            words += [*source[place:start], *text.split()]
            place = end
    words += source[place:]
    if draw.random() < 0.5:
        where = draw.randrange(len(words) + 1)
        words[where : where + draw.randint(0, 1)] = sentence(draw, 0, 2)
    return " ".join(words or ["a"])


def m2_lines(source: list[str], annotators: list[list[tuple[int, int, str]]]) -> str:
    lines = [f"S {' '.join(source)}"]
    for number, gold in enumerate(annotators):
        for start, end, text in gold or [(-1, -1, "-NONE-")]:
            kind = "X" if gold else "noop"
            lines.append(f"A {start} {end}|||{kind}|||{text}|||REQUIRED|||-NONE-|||{number}")
    return "\n".join(lines) + "\n\n"


def maxmatch(draw: random.Random, program: Path) -> Case:
    """Precision, recall and F0.5 of a set; the program prints four digits."""
    gold, hypotheses = "", []
    for _ in range(draw.choice((1, 8))):
        source = sentence(draw, 3, 9)
        annotators = [edits(draw, source) for _ in range(draw.randint(1, 2))]
        gold += m2_lines(source, annotators)
        hypotheses.append(corrected(draw, source, draw.choice(annotators)))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "hypotheses", Path(folder) / "gold"
        for path, text in zip(
            files, ("".join(f"{one}\n" for one in hypotheses), gold), strict=True
        ):
            path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", PYTHON_2, str(program), *map(str, files)]
        output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    scores = [float(line.split(":")[1]) for line in output.splitlines()]
    return {"gold": gold, "hypotheses": hypotheses, "scores": scores}


def over_and_under(draw: random.Random, metric: Any) -> Case:
    """OTEM and UTEM of a set, as fractions."""
    sides = [[sentence(draw, 4, 14) for _ in range(6)] for _ in range(2)]
    references = [[one] for one in sides[1]]
    scores = [metric.otem(sides[0], references), metric.utem(sides[0], references)]
    hypotheses, wanted = ([" ".join(one) for one in side] for side in sides)
    return {"hypotheses": hypotheses, "references": wanted, "scores": scores}


def sari(draw: random.Random, easse: Any) -> Case:
    """SARI of a set, deletions by F1 and by precision, in percent."""
    columns = [[" ".join(sentence(draw, 4, 12)) for _ in range(4)] for _ in range(4)]
    source, hypotheses, *references = columns
    scores = [
        easse.corpus_sari(source, hypotheses, references, use_f1_for_deletion=f1)
        for f1 in (True, False)
    ]
    return {"source": source, "hypotheses": hypotheses, "references": references, "scores": scores}


def main(m2scorer: str, otem: str, easse: str) -> None:
    sys.path[:0] = [otem, easse]
    metric, simplification = map(importlib.import_module, ("metric", "easse.sari"))
    draw = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "scripts"
        shutil.copytree(Path(m2scorer) / "scripts", program)
        command = [sys.executable, "-W", "ignore", "-m", "lib2to3", "-w", "-n", str(program)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {
            "maxmatch": [maxmatch(draw, program) for _ in range(SETS)],
            "otem": [over_and_under(draw, metric) for _ in range(SETS)],
            "sari": [sari(draw, simplification) for _ in range(SETS)],
        }
    RECORDED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
