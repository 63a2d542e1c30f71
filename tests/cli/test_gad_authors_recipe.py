"""The recipe for models that the authors of GAD publish: small checkpoints of their form, decoded and scored."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from scripts.recipes.subwords import decoder, encoder
from tests.cli.wmt_files import recipe
from tests.support import SIZES, make_dictionary, make_model, make_task
from tests.unit import test_published_drafter as published


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Checkpoints with ``args``, as fairseq 0.10 wrote them, dictionaries, and text in pieces."""
    folder = tmp_path_factory.mktemp("authors")
    for language in ("en", "de"):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    words = make_dictionary().symbols[4:]
    lines = [
        " ".join(words[(row * 5 + i * 7) % len(words)] for i in range(4 + row)) for row in (0, 1, 2)
    ]
    for name in ("test.en", "test.de"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = {"share_all_embeddings": True}
    args = Namespace(**SIZES, **options, arch="transformer", task="translation", data="")
    ARCH_CONFIG_REGISTRY["transformer"](args)
    kept = {
        "optimizer_history": [{"criterion_name": "", "best_loss": 0, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    verifier = make_model(make_task(), 5, **options).state_dict()
    torch.save({"args": args, "model": verifier, **kept}, folder / "verifier.pt")
    drafter = {"args": published.options(), "model": published.weights()}
    torch.save(drafter | kept, folder / "drafter.pt")
    names = {"TEXT": "test.en", "REFERENCE": "test.de", "VERIFIER": "verifier.pt"}
    names |= {"DRAFTER": "drafter.pt", "DICTS": "."}
    return {name: str(folder / file) for name, file in names.items()}


def test_their_models_are_decoded_and_scored(files: dict[str, str], tmp_path: Path) -> None:
    done = recipe(
        "gad_authors", tmp_path / "work", **files, BLOCK_SIZE=str(published.BLOCK), BATCH_SIZE="3"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "work" / "results.json").read_text())["results"]
    assert [row["system"].partition(" (")[0] for row in rows] == [
        *["verifier, beam 5", "verifier, beam 1", "verifier, our greedy", "GAD", "GAD++", "GAD++"]
    ]
    assert all({"sacreBLEU", "compound-split BLEU", "speed-up"} <= set(row) for row in rows)
    same = {row["system"]: row.get("different") for row in rows}
    assert (same["verifier, our greedy"], same["GAD"]) == (0, 0)
    assert rows[3]["sentences"] == 3 and not (tmp_path / "work" / "train").exists()


def test_what_is_missing_is_named(files: dict[str, str], tmp_path: Path) -> None:
    done = recipe("gad_authors", tmp_path, **files | {"DRAFTER": "nothing.pt"})
    assert done.returncode == 2 and "DRAFTER='nothing.pt' does not exist" in done.stderr
    done = recipe("gad_authors", tmp_path, **files, SUMMARIES="1")
    assert done.returncode == 2 and "has no dict.source.txt" in done.stderr


def test_pieces_of_gpt2(tmp_path: Path) -> None:
    """Numbers of GPT-2's pieces, there and back; what is no number is left out."""
    tokens = ["Ġ", "a", "b", "ab", "Ġab", "<|endoftext|>"]
    (tmp_path / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\nĠ ab\n")
    name = f"gpt2:{tmp_path}"
    assert encoder(name)("ab ab") == "3 4"
    assert decoder(name)("3 4 <unk>") == "ab ab"
    assert decoder("@@")("a@@ b c@@ d") == "ab cd" and encoder("@@")("a@@ b") == "a@@ b"
    with pytest.raises(FileNotFoundError, match=r"has no encoder\.json"):
        encoder(f"gpt2:{tmp_path / 'nothing'}")
