"""Records tests/unit/specdec_drafter.json: logits of a small drafter, computed by the code of GAD's authors.

    python -m tests.origins.specdec FOLDER

FOLDER is a checkout of github.com/hemingkx/SpecDec. Its models (specdec_plugins/models and its own fairseq/models/nat)
run over the fairseq that is installed here, on the CPU: the one call of ``.cuda()`` does nothing. Weights, sources and
prefixes are those of tests/unit/test_published_drafter.py.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from fairseq import models

from tests.support import make_batch, make_dictionary
from tests.unit import test_published_drafter as small

RECORDED = Path(__file__).parents[1] / "unit" / "specdec_drafter.json"


def authors_models(folder: Path) -> Any:
    """Their module of BlockNAT, which imports their ``fairseq.models.nat`` in place of the installed one."""
    for name in [name for name in sys.modules if name.startswith("fairseq.models.nat")]:
        del sys.modules[name]
    theirs = {path.stem for path in (folder / "fairseq" / "models" / "nat").glob("*.py")}
    assert "nonautoregressive_transformer" in theirs, f"{folder} is no checkout of SpecDec"
    for registry in (models.MODEL_REGISTRY, models.ARCH_MODEL_REGISTRY):
        for name in [name for name in registry if "nonautoregressive" in name]:
            del registry[name]
    models.__path__.insert(0, str(folder / "fairseq" / "models"))
    sys.path.insert(0, str(folder / "specdec_plugins" / "models"))
    return importlib.import_module("BlockNAT")


def main(folder: str) -> None:
    blocknat = authors_models(Path(folder))
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    args = small.options(
        **dict.fromkeys(("encoder_layers", "decoder_layers"), small.LAYERS),
        **dict.fromkeys(("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"), small.HIDDEN),
        **dict.fromkeys(("max_source_positions", "max_target_positions"), small.LONGEST),
        **dict.fromkeys(("encoder_learned_pos", "decoder_learned_pos"), True),
        encoder_embed_dim=small.WIDTH,
    )
    blocknat.base_architecture(args)

    class Task:
        source_dictionary = target_dictionary = make_dictionary()

    model = blocknat.BlockNAT.build_model(args, Task()).eval()
    model.load_state_dict(small.weights())
    rows = make_batch(small.SOURCES)["net_input"]["src_tokens"].tolist()
    found = []
    for row, prefix in zip(rows, small.PREFIXES, strict=True):
        source = torch.tensor([[token for token in row if token != small.PAD]])
        tokens = torch.tensor([[*prefix, *[small.UNK] * small.BLOCK]])
        block = torch.arange(tokens.shape[1])[None] >= len(prefix)
        with torch.no_grad():
            encoded = model.encoder(source, src_lengths=torch.tensor([source.shape[1]]))
            logits = model.decoder(
                normalize=False, encoder_out=encoded, prev_output_tokens=tokens, block_mask=block
            )[0]
        found.append([[round(x, 5) for x in slot] for slot in logits.tolist()])
    RECORDED.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
