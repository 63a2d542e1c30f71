"""The methods of ``--decoding``. A new one is its file in ``methods/`` and a line here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodKind:
    """Facts that are known of a method before its file is imported.

    Attributes:
        help: one sentence for ``--help``.
        searches: it takes a beam; the others find one hypothesis.
        verified: it is one of the greedy loop, in which a verifier checks drafts.
        model_drafts: a model drafts, in blocks of ``--draft-tokens``.
        light: it needs nothing beside the packed models of ``--path``.
    """

    help: str
    searches: bool = False
    verified: bool = False
    model_drafts: bool = False
    light: bool = False


# In the order of --help; the name is that of the file.
KINDS = {
    "beam": MethodKind(
        "what stock fairseq gives with the same --beam, faster", searches=True, light=True
    ),
    "stock": MethodKind("fairseq's own generator", searches=True),
    "greedy": MethodKind("one token at a time on the cached decoder", verified=True, light=True),
    "iad": MethodKind(
        "input-guided aggressive decoding, drafts from the source", verified=True, light=True
    ),
    "gad": MethodKind(
        "generalized aggressive decoding, drafts of a non-autoregressive model (--drafter-path)",
        verified=True,
        model_drafts=True,
    ),
    "nar": MethodKind("the non-autoregressive drafter alone", model_drafts=True),
    "blockwise": MethodKind(
        "the model's own extra heads draft (--arch blockwise_transformer)",
        verified=True,
        model_drafts=True,
    ),
    "interleaved": MethodKind(
        "beam search with several words per step (--arch interleaved_transformer)", searches=True
    ),
    "lattice": MethodKind(
        "the best path through a lattice of candidates (--arch lattice_transformer)"
    ),
}
VERIFIED = tuple(name for name, kind in KINDS.items() if kind.verified)


def kind_of(name: str) -> MethodKind:
    """A method's line; an empty one for a method that is not in the table, as a test may have."""
    return KINDS.get(name, MethodKind(""))
