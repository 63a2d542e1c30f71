"""Damaged and forged packed folders: each is refused with a sentence, or writes what the sound one writes."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.kernels import library
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.packed import folder as packed_folder
from fairseq_aggdec.stored.loading import CheckpointError
from scripts import random_models
from tests.cli.commands import ROOT
from tests.equality.test_packed import damaged, outputs
from tests.fuzz import budget
from tests.support import make_dictionary
from tests.unit.test_one_copy import SMALL

HERE = "tests/fuzz/test_packed.py"


@pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
def test_damage_is_refused_or_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are damaged after they were opened, as long as possible after that."""
    monkeypatch.setattr(packed_folder, "SETTLED", -(10**9))
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    model = tmp_path / "model.pt"
    random_models.write_checkpoint(model, tmp_path, "transformer", *SMALL, "--share-all-embeddings")
    kinds = {kind: tmp_path / kind for kind in ("fp32", "int8")}
    for kind, folder in kinds.items():
        pack(model, tmp_path, folder, kind)
    expected = {kind: outputs(folder, None, beam=2) for kind, folder in kinds.items()}
    cases = refused = 0
    for seed in budget.seeds(0.5):
        chance, case = random.Random(seed), tmp_path / "case"
        kind = chance.choice(sorted(kinds))
        shutil.copytree(kinds[kind], case)
        packed_folder.open_folder(case)
        for _ in range(chance.choice([1, 1, 1, 2])):
            one, other = (chance.choice(sorted(case.iterdir())) for _ in range(2))
            content = one.read_bytes()
            way = chance.randrange(5)
            one.write_bytes(other.read_bytes() if way == 4 else damaged(content, way, chance))
        try:
            assert outputs(case, None, beam=2) == expected[kind], budget.again(HERE, seed)
        except CheckpointError as error:
            assert "aggdec pack" in str(error), budget.again(HERE, seed)
            refused += 1
        cases += 1
        shutil.rmtree(case)
    print(f"{cases} damaged folders: {refused} refused, {cases - refused} as they were")
    assert refused > cases / 2


@pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
def test_no_forged_folder_ends_the_process() -> None:
    """In a process of its own; the level sanitizers runs it with the kernels of the address sanitizer."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.forged"]
    command += [str(budget.first_seed()), str(0.5 * budget.seconds()), str(library.FOLDER)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = f"{done.stdout[-300:]} {done.stderr[-4000:]}"
    assert done.returncode == 0, f"{' '.join(command)} ends with {done.returncode}: {said}"
    found = re.search(r"(\d+) forged folders: .*", done.stdout)
    assert found is not None and "refused" in found[0], said
    print(found[0])
