"""Every decoding option of the plugin, declared once; the task's options are these beside fairseq's own."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

DECODING = ChoiceEnum(["beam", "greedy", "iad"])
IAD_MATCH = ChoiceEnum(["unique", "longest", "recent"])


@dataclass
class DecodingConfig(FairseqDataclass):
    """How ``fairseq-generate`` and its relatives decode."""

    decoding: DECODING = field(
        default="beam",
        metadata={
            "help": "beam: stock fairseq; greedy: one token at a time on the cached decoder; iad: input-guided "
            "aggressive decoding, drafts from the source. greedy and iad give what --beam 1 gives, faster"
        },
    )
    iad_match: IAD_MATCH = field(
        default="unique",
        metadata={
            "help": "where iad goes on copying after an edit: at a suffix of the output that occurs once in the source "
            "(unique, as in the paper), or, when it occurs several times, at its first occurrence (longest) or at "
            "the next one after the last copied token (recent). The output is the same, only the speed differs"
        },
    )
    no_weight_packing: bool = field(
        default=False,
        metadata={
            "help": "on CPU, do not keep a second copy of the weights laid out for few rows: slower, less memory"
        },
    )
