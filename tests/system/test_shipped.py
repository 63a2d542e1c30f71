"""The shipped model drafts as well as the pages say: a change that loses accepted tokens changes no output."""

from __future__ import annotations

from difflib import SequenceMatcher

from fairseq_aggdec import from_pretrained
from tests.cli.commands import ROOT

SHIPPED = ROOT / "checkpoints" / "ua_gec"
SENTENCES = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[:60]


def calls_of_copies(source: list[str], output: list[str]) -> int:
    """Calls of a perfect choice of copies, at most: one for each run of equal tokens, one for each other token."""
    runs = [m for m in SequenceMatcher(None, source, output, False).get_matching_blocks() if m.size]
    return len(runs) + len(output) - sum(run.size for run in runs)


def test_the_input_is_accepted_as_a_draft() -> None:
    """`iad` needs few calls, of whole sentences one, and the outputs are those of greedy decoding."""
    options = {"device": "cpu", "spm": SHIPPED / "spm.model"}
    place = (SHIPPED / "checkpoint.pt", SHIPPED)
    model = from_pretrained(*place, "iad", draft_tokens="all", **options)
    found = [ranked[0] for ranked in model.generate(SENTENCES)]
    assert [one.text for one in found] == from_pretrained(*place, "greedy", **options).translate(
        SENTENCES
    )
    assert sum(one.mean_accepted * one.steps for one in found) / sum(one.steps for one in found) > 8
    for sentence, one in zip(SENTENCES, found, strict=True):
        source = [*model.codec.encode(sentence).split(), "</s>"]
        output = [*one.tokens, "</s>"]
        assert one.steps <= 2 * calls_of_copies(source, output)
        assert one.steps == 1 or source != output
