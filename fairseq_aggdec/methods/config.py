"""Every decoding option of the plugin, declared once; the task's options are these beside fairseq's own."""

import argparse
from dataclasses import dataclass, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II

from fairseq_aggdec.methods.options.kinds import KINDS, VERIFIED
from fairseq_aggdec.methods.options.old_names import OLD_NAMES
from fairseq_aggdec.methods.options.settings import INT8
from fairseq_aggdec.methods.options.variants import VARIANTS
from fairseq_aggdec.models.options import add_flags, option

DECODING = ChoiceEnum(list(KINDS))
DRAFT_FROM = ChoiceEnum(["auto", "source", "file", "interleaved", "lattice", "heads", "none"])
OF_LOOP = ", ".join(VERIFIED)

# Options under the names that they had before: they work and are not shown.
OldNames: Any = make_dataclass(
    "OldNames",
    [
        (
            old.name,
            Optional[str] if old.default is None else type(old.default),
            option(old.default, argparse.SUPPRESS),
        )
        for old in OLD_NAMES
    ],
    bases=(FairseqDataclass,),
    namespace={"__module__": __name__},
)


@dataclass
class DecodingConfig(OldNames):
    """How ``fairseq-generate`` and its relatives decode."""

    decoding: DECODING = option(
        "beam", "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items())
    )
    # fairseq's own flag, which its generation ignores; no help text, so that fairseq makes no second flag of it.
    bf16: bool = II("common.bf16")
    draft_from: DRAFT_FROM = option(
        "auto",
        "iad, beam: the text that is copied: the source, the lines of --draft-file, or what the model of "
        "--drafter-path writes (interleaved, lattice); beam: heads looks where block heads point; none drafts "
        "nothing; auto: the source as long as that pays",
    )
    draft_file: Optional[str] = option(
        None,
        "--draft-from file: one draft per sentence of the set, in its order, in target tokens; an empty line drafts "
        "nothing",
        "FILE",
    )
    drafter_path: Optional[str] = option(
        None,
        "checkpoint of the drafter: gad, nar: of --arch nar_drafter; iad, beam: of the model that --draft-from names",
        "FILE",
    )
    draft_tokens: Optional[str] = option(
        None,
        "longest draft: N tokens, all that there are, or auto, as many as pay. gad, nar, blockwise: tokens predicted "
        "at once, at most those of training; iad: tokens copied at once (default: what pays)",
        "auto|N|all",
    )
    draft_tree: Optional[str] = option(
        None,
        "gad, blockwise: draft a tree of N tokens, the likeliest paths, instead of one path; auto: as many as pay "
        "(default: one path; in fp32 on a CPU: what pays)",
        "auto|N",
    )
    acceptance: str = option(
        "exact",
        "iad, gad, blockwise: which drafted tokens are accepted. exact: the model's own choice, lossless; "
        "top-beta:RANK:NATS, top-k:RANK, distance:N: others too; min:TOKENS: at least this many tokens per iteration, "
        "also behind a comma (top-k:2,min:2)",
        "RULE",
    )
    int8: Optional[str] = option(
        None,
        "on a CPU compute in 8 bits: drafts (gad, blockwise; same output) or all (the output is that of the 8-bit "
        "model); --int8 alone means all (default: none; drafts where that pays)",
        "none|drafts|all",
        argparse_const="all",
    )
    strict: int = option(
        0,
        f"{OF_LOOP}: every call reads N tokens of every sentence, so that in fp16 and bf16 the output is that of "
        "--decoding greedy with the same N, bit for bit; 0: as many as there are",
        "N",
    )
    shortlist: int = option(
        0,
        f"{OF_LOOP}: choose among the N likeliest words of the --lattice tables for each position; not lossless; "
        "0: all words",
        "N",
    )
    lattice: Optional[str] = option(
        None,
        "lattice, --shortlist: folder of tables made by aggdec lattice-tables (default: lattice.SOURCE-TARGET in the "
        "data folder)",
        "FOLDER",
    )
    no_graphs: bool = option(False, "on a GPU replay no captured graphs: slower, less memory")
    low_memory: bool = option(
        False, "on a CPU keep no second copy of the weights, laid out for few rows: slower"
    )
    variant: Optional[str] = option(
        None,
        "KEY=VALUE[,KEY=VALUE]: a printed variant of one paper. Keys, explained in docs/options.md: "
        + ", ".join(VARIANTS),
        "KEY=VALUE",
    )


class Int8Action(argparse.Action):
    """``--int8`` alone means all, in front of the data folder too."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        mode = values if values in INT8 else self.const
        setattr(namespace, self.dest, mode)
        if mode == values:
            return
        data = next((one for one in parser._actions if one.dest == "data"), None)
        if data is None or getattr(namespace, "data", None) is not None:
            parser.error(f"--int8 {values}: choose {', '.join(INT8)}")
        else:  # argparse took the folder for the value of the option
            data.required, namespace.data = False, values


class JoinAction(argparse.Action):
    """An option that may be given several times: its texts are joined by commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


ACTIONS = {"int8": Int8Action, "variant": JoinAction}


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of :class:`DecodingConfig` to a parser, in a group of their own."""
    group = parser.add_argument_group("decoding by fairseq_aggdec")
    add_flags(group, DecodingConfig, whole=True)
    for action in group._group_actions:
        if action.dest in ACTIONS:
            action.__class__ = ACTIONS[action.dest]
