"""Converted models against transformers: tokens, logits and searches, with fairseq's own loading and search."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data.encoders import build_bpe
from torch import Tensor

import fairseq_aggdec
from fairseq_aggdec.convert.checkpoint import convert
from fairseq_aggdec.convert.folder import read
from fairseq_aggdec.convert.vocabulary import ABSENT, sides
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from tests import hugging_face_folders as folders
from tests import warm
from tests.support import assert_same

pytest.importorskip("transformers")
LIMIT = 20
# Of which the outputs differ from source to source.
SEEDS = {"marian": 4, "marian_two": 1, "nllb": 2, "bart": 4, "mbart": 1, "mbart50": 4}


@dataclass(frozen=True)
class Pair:
    """A model of transformers and what it was converted to.

    Attributes:
        rows: of the model's tables, by index of fairseq's target dictionary.
        source_rows: the same of the source.
    """

    kind: str
    other: Any
    tokenizer: Any
    output: Path
    model: Any
    task: Any
    bpe: Any
    rows: Tensor
    source_rows: Tensor

    def sample(self) -> dict[str, Any]:
        """All lines as fairseq's interactive command prepares them."""
        pieces = [prepared(self.kind, self.bpe.encode(line)) for line in folders.LINES]
        dictionary = self.task.source_dictionary
        rows = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in pieces]
        data = self.task.build_dataset_for_inference(rows, [len(row) for row in rows])
        sample: dict[str, Any] = data.collater([data[index] for index in range(len(rows))])
        return sample

    def forced(self) -> int | None:
        """The first token of every target in the other model, the language's; None for other kinds."""
        if self.kind not in ("m2m_100", "nllb", "mbart50"):
            return None
        language = folders.PAIRS[self.kind][1]
        token = f"__{language}__" if self.kind == "m2m_100" else language
        return int(self.tokenizer.convert_tokens_to_ids(token))


def prepared(kind: str, pieces: str) -> str:
    """What a user adds to a line of pieces."""
    return {"bart": f"<s> {pieces}", "mbart": f"{pieces} </s>"}.get(kind, pieces)


@pytest.fixture(scope="module", params=folders.KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return converted(request.param, tmp_path_factory.mktemp(request.param))


def converted(kind: str, folder: Path) -> Pair:
    other, tokenizer = folders.make(kind, folder / "hf", SEEDS.get(kind, 1))
    output = folder / "fairseq"
    convert(folder / "hf", output, *folders.PAIRS.get(kind, (None, None)))
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(output / "model.pt")])
    source, target = (torch.tensor(side.rows) for side in sides(read(folder / "hf")))
    bpe = build_bpe(cfg.bpe)
    return Pair(kind, other, tokenizer, output, model.eval(), task, bpe, target, source)


def test_sources_have_the_tokenizers_ids(pair: Pair) -> None:
    sample = pair.sample()
    for number, row in zip(sample["id"].tolist(), sample["net_input"]["src_tokens"], strict=True):
        found = pair.source_rows[row[row != 1]].tolist()
        assert found == pair.tokenizer(folders.LINES[number])["input_ids"]


def test_logits_are_equal(pair: Pair) -> None:
    sample = pair.sample()
    tokens = sample["net_input"]["src_tokens"].flip(1)  # padded on the right; any order will do
    generator = torch.Generator().manual_seed(0)
    others = torch.arange(4, len(pair.rows))
    picked = others[torch.randint(len(others), (len(tokens), 30), generator=generator)]
    start = 2 if pair.kind != "mbart" else pair.task.target_dictionary.index("[ro_RO]")
    previous = torch.cat([torch.full((len(tokens), 1), start), picked], 1)
    expected_start = pair.other.config.decoder_start_token_id
    with torch.no_grad():
        found = pair.model(tokens, None, previous)[0]
        expected = pair.other(
            input_ids=pair.source_rows[tokens],
            attention_mask=tokens.ne(1).long(),
            decoder_input_ids=pair.rows[previous].index_fill(1, torch.tensor([0]), expected_start),
        ).logits
    present = pair.rows != ABSENT
    assert expected.std() > 1
    torch.testing.assert_close(
        found[..., present], expected[..., pair.rows[present]], atol=1e-5, rtol=0
    )
    assert (found[..., ~present] < -9000).all()


class EndsAt:
    """fairseq's way to end at the longest length: ``</s>`` keeps its score, where transformers gives it 0."""

    def __init__(self, limit: int, end: int):
        self.limit, self.end = limit, end

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        if tokens.size(1) <= self.limit:
            return scores
        found = torch.full_like(scores, float("-inf"))
        found[:, self.end] = scores[:, self.end]
        return found


def penalty(pair: Pair) -> float:
    """Mean scores, or sums where a token is forced: only fairseq counts it, and in a sum it ranks nothing."""
    return 1.0 if pair.forced() is None else 0.0


def generated(
    pair: Pair, order: list[int], beam: int, forced: int | None = None
) -> list[list[int]]:
    """What transformers writes, up to and with ``</s>``."""
    end, forced = pair.other.config.eos_token_id, pair.forced() if forced is None else forced
    ranked = (
        {"num_beams": beam, "length_penalty": penalty(pair), "early_stopping": True}
        if beam > 1
        else {}
    )
    batch = pair.tokenizer([folders.LINES[n] for n in order], return_tensors="pt", padding=True)
    found = pair.other.generate(
        **batch,
        max_new_tokens=LIMIT + 1,
        min_new_tokens=1 if forced is None else None,
        forced_bos_token_id=forced,
        logits_processor=[EndsAt(LIMIT, end)],
        suppress_tokens=[pair.other.config.pad_token_id],
        do_sample=False,
        **ranked,
    )
    rows = [row[1:] for row in found.tolist()]
    return [row[: row.index(end) + 1] for row in rows]


@pytest.mark.parametrize("beam", [1, 4])
def test_stock_fairseq_writes_what_transformers_writes(pair: Pair, beam: int) -> None:
    sample = pair.sample()
    options = Namespace(beam=beam, max_len_b=LIMIT, lenpen=penalty(pair))
    generator = pair.task.build_generator([pair.model], options)
    found = pair.task.inference_step(generator, [pair.model], sample)
    texts = [pair.rows[row[0]["tokens"]].tolist() for row in found]
    assert len(set(map(tuple, texts))) > 1
    assert texts == generated(pair, sample["id"].tolist(), beam)


@pytest.mark.parametrize(("decoding", "beam"), [("iad", 1), ("beam", 4)])
def test_our_decoding_writes_what_stock_writes(pair: Pair, decoding: str, beam: int) -> None:
    assert decoder_gap(pair.model.decoder) is None and encoder_gap(pair.model.encoder) is None
    sample, options = pair.sample(), Namespace(beam=beam, max_len_b=LIMIT)
    stock = pair.task.build_generator([pair.model], options)
    ours = fairseq_aggdec.adopt(stock, decoding=decoding)
    assert type(ours).__module__.startswith("fairseq_aggdec.")
    found, expected = (
        [rows[0] for rows in pair.task.inference_step(generator, [pair.model], sample)]
        for generator in (ours, stock)
    )
    assert_same(found, expected)


PLAIN = """
import json, sys
from fairseq.models.bart import BARTModel
folder, *lines = sys.argv[1:]
files = {"gpt2_encoder_json": folder + "/encoder.json", "gpt2_vocab_bpe": folder + "/vocab.bpe"}
hub = BARTModel.from_pretrained(folder, **files).eval()
found = hub.generate([hub.encode(line) for line in lines], beam=1, max_len_b=20)
assert "fairseq_aggdec" not in sys.modules
print(json.dumps([rows[0]["tokens"].tolist() for rows in found]))
"""


def test_the_hub_of_plain_fairseq_reads_it(tmp_path: Path) -> None:
    """In a process that does not know this package. The hub forces <s> in front of the target."""
    pair = converted("bart", tmp_path)
    command = [warm.python(), "-c", PLAIN, str(pair.output), *folders.LINES]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    order = list(range(len(folders.LINES)))
    assert json.loads(run.stdout.splitlines()[-1]) == generated(pair, order, 1, forced=0)
