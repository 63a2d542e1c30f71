"""Damaged folders of packed weights: each is refused with a sentence, or writes what the sound one writes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fairseq_aggdec.compat import CheckpointError
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.packed import folder as packed_folder
from scripts import random_models
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
    for seed in budget.seeds():
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
