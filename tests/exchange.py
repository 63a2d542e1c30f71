"""What ``scripts/matrix.sh`` does in each environment beside the tests: decodes models of other environments.

python -m tests.exchange FOLDER NAME             trains NAME's model, decodes it and all others in FOLDER
python -m tests.exchange --record FOLDER NAME STATUS    writes the line and the table of the results
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from importlib.metadata import version
from pathlib import Path

SENTENCES = ["a b c d e", "e d c b a", "a a b b c", "c a d b e c", "b e b e d"]
BASE = "transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32"
BASE += " --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2"


def run(command: str, *arguments: str) -> str:
    """The output of one of fairseq's commands, with the plugin."""
    code = f"import fairseq_aggdec; from fairseq_cli import {command}; {command}.cli_main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(place: Path) -> None:
    """A tiny model that copies, in ``place/model``."""
    (place / "model").mkdir()
    for side in ("src", "tgt"):
        text = "\n".join(SENTENCES * 20) + "\n"
        for split in ("train", "valid"):
            (place / "model" / f"{split}.{side}").write_text(text, encoding="utf-8")
    files = [f"--{split}pref={place}/model/{split}" for split in ("train", "valid")]
    pair = ["-s", "src", "-t", "tgt"]
    data = str(place / "model" / "data")
    run("preprocess", *pair, *files, "--testpref", f"{place}/model/valid", "--destdir", data)
    rates = "--optimizer adam --lr 0.005 --max-tokens 400 --max-epoch 8 --criterion cross_entropy"
    quiet = "--cpu --no-progress-bar --no-epoch-checkpoints --disable-validation --seed 1"
    run("train", data, *pair, "--arch", *BASE.split(), *rates.split(), *quiet.split(),
        "--save-dir", str(place / "model"))  # fmt: skip


def decode(place: Path, *more: str) -> list[str]:
    model = place / "model"
    found = run("generate", str(model / "data"), "--path", str(model / "checkpoint_last.pt"),
                "--cpu", "--beam", "2", "--batch-size", "4",
                "--required-batch-size-multiple", "1", *more)  # fmt: skip
    return sorted(line for line in found.splitlines() if line[:2] in ("H-", "P-"))


def same(found: list[str], wanted: list[str]) -> bool:
    """The same tokens; scores to a thousandth, since fairseq's own differ in less between versions of PyTorch."""
    pairs = [
        (one.split(), other.split())
        for one, other in itertools.zip_longest(found, wanted, fillvalue="")
    ]
    return all(
        len(one) == len(other) and all(itertools.starmap(near, zip(one, other, strict=True)))
        for one, other in pairs
    )


def near(one: str, other: str) -> bool:
    try:
        return one == other or abs(float(one) - float(other)) < 1e-3
    except ValueError:
        return False


def exchange(folder: Path, name: str) -> None:
    own = folder / name
    if not (own / "model" / "checkpoint_last.pt").exists():
        train(own)
    output = own / "model" / "output.json"
    if not output.exists():
        output.write_text(json.dumps(decode(own)), encoding="utf-8")
    others = sorted(path.parent for path in folder.glob("*/model/output.json"))
    for other in others:
        wanted = json.loads((other / "output.json").read_text(encoding="utf-8"))
        found = decode(other.parent, "--task", "translation_aggdec", "--decoding", "beam")
        assert same(found, wanted), f"{other.parent.name}: {found} where {wanted} was found"
    print(f"{len(others)} models decoded, 0 differ")


def record(folder: Path, name: str, status: str) -> None:
    """Writes what happened in this environment to ``environments.jsonl``, and the page of all of them."""
    import fairseq

    from fairseq_aggdec.records import machine

    suite = xml.parse(folder / name / "tests.xml").getroot()[0]
    made = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    ran = Counter(one.attrib["classname"].split(".")[1] for one in suite.iter("testcase"))
    line = {"cell": name, "status": int(status), **made, "ran": ran, "machine": machine.describe()}
    line["modules"] = {one: version(one) for one in ("omegaconf", "hydra-core")}
    line["clone"] = "site-packages" not in str(fairseq.__file__)
    line["exchange"] = (folder / name / "exchange").read_text(encoding="utf-8").strip()[-200:]
    path = folder / "environments.jsonl"
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = [one for one in map(json.loads, before) if one["cell"] != name] + [line]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    (folder / "environments.md").write_text(page(lines), encoding="utf-8")


def page(lines: list[dict]) -> str:
    """The command, the machines, and a row for each environment."""
    machines = [one["machine"] for one in lines]
    kinds = {
        f"{one['processor']}, {one['cores']} cores, {one['memory_gib']} GiB" for one in machines
    }
    rows = [
        "# The tests in other environments\n",
        "`scripts/matrix.sh` ran some tests in each environment and decoded the models that had been trained in the",
        "environments before. Where it ended with *yes*, all tests passed and no file of fairseq had changed.\n",
        f"{'; '.join(sorted(kinds))}; commit {', '.join(sorted({one['commit'] for one in machines}))}\n",
        "| Python | PyTorch | fairseq | NumPy | OmegaConf | hydra | tests | failed | skipped | models | all right |",
        "|" + "---|" * 11,
    ]  # fmt: skip
    for one in sorted(lines, key=lambda one: (one["machine"]["python"], one["cell"])):
        versions = one["machine"]["versions"] | one["modules"]
        fairseq = ", ".join(f"{key} {value}" for key, value in versions.items() if "fairseq" in key)
        fairseq = fairseq.partition(", fairseq_aggdec")[0]
        cells = (
            one["machine"]["python"],
            versions["torch"],
            fairseq + ", a clone" * one.get("clone", False),
            *(versions[key] for key in ("numpy", "omegaconf", "hydra-core")),
            ", ".join(f"{count} {level}" for level, count in one["ran"].items()),
            one["failures"] + one["errors"],
            one["skipped"],
            one["exchange"],
            "no" if one["status"] else "yes",
        )
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(Path(sys.argv[2]), *sys.argv[3:])
    else:
        exchange(Path(sys.argv[1]), sys.argv[2])
