"""Every decoding option of the plugin, declared once; the task's options are these beside fairseq's own."""

import argparse
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import II

from fairseq_aggdec.methods.options.settings import INT8
from fairseq_aggdec.methods.options.variants import VARIANTS
from fairseq_aggdec.methods.table import HELP, VERIFIED

DECODING = ChoiceEnum(list(HELP))
DRAFT_FROM = ChoiceEnum(["auto", "source", "file", "interleaved", "lattice", "heads", "none"])


def hidden(default: Any) -> Any:
    """A field whose option works and is not shown."""
    return field(default=default, metadata={"help": argparse.SUPPRESS})


@dataclass
class OldNames(FairseqDataclass):
    """Options under the names that they had before; :mod:`fairseq_aggdec.methods.options.old_names` folds them in."""

    block_size: Optional[str] = hidden(None)
    iad_draft_length: str = hidden("auto")
    draft_nodes: Optional[str] = hidden(None)
    draft_int8: bool = hidden(False)
    top_beta: int = hidden(3)
    tolerance: float = hidden(1.0)
    top_k: int = hidden(2)
    epsilon: int = hidden(2)
    min_block_size: int = hidden(1)
    no_weight_packing: bool = hidden(False)
    iad_match: str = hidden("aligned")
    draft_vocabulary: int = hidden(0)
    end_condition: str = hidden("first")
    stop_rule: str = hidden("stock")
    length_penalty: str = hidden("fairseq")
    dedup: int = hidden(0)
    lattice_candidates: int = hidden(64)
    lattice_least_probability: float = hidden(0.005)
    lattice_length_window: int = hidden(3)
    lattice_smoothing: str = hidden("interpolated")
    lattice_normalise: str = hidden("candidates")
    lattice_search: str = hidden("serial")


@dataclass
class DecodingConfig(OldNames):
    """How ``fairseq-generate`` and its relatives decode."""

    decoding: DECODING = field(
        default="beam",
        metadata={"help": "; ".join(f"{name}: {help}" for name, help in HELP.items())},
    )
    # fairseq's own flag, which its generation ignores; no help text, so that fairseq makes no second flag of it.
    bf16: bool = II("common.bf16")
    draft_from: DRAFT_FROM = field(
        default="auto",
        metadata={
            "help": "iad, beam, gad, blockwise: the text that is copied: the source, the lines of --draft-file, or "
            "what the model of --drafter-path writes (interleaved, lattice); beam: heads looks where block heads "
            "point; none drafts nothing; auto: the source as long as that pays (gad, blockwise: no text)"
        },
    )
    draft_file: Optional[str] = field(
        default=None,
        metadata={
            "help": "--draft-from file: one draft per sentence of the set, in its order, in target tokens; an empty "
            "line drafts nothing"
        },
    )
    drafter_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint of the drafter: gad, nar: of --arch nar_drafter; iad, beam: of the model that "
            "--draft-from names"
        },
    )
    draft_tokens: Optional[str] = field(
        default=None,
        metadata={
            "help": "longest draft: N tokens, all that there are, or auto, as many as pay. gad, nar, blockwise: tokens "
            "predicted at once, at most those of training; iad: tokens copied at once (default: what pays)",
        },
    )
    draft_tree: Optional[str] = field(
        default=None,
        metadata={
            "help": "iad, gad, blockwise: draft a tree of N tokens, the likeliest paths, instead of one path; auto: as "
            "many as pay (default: one path; gad, blockwise in fp32 on a CPU: what pays)"
        },
    )
    acceptance: str = field(
        default="exact",
        metadata={
            "help": "iad, gad, blockwise: which drafted tokens are accepted. exact: the model's own choice, lossless; "
            "top-beta:RANK:NATS, top-k:RANK, distance:N: others too; min:TOKENS: at least this many tokens per "
            "iteration, also behind a comma (top-k:2,min:2)"
        },
    )
    int8: Optional[str] = field(
        default=None,
        metadata={
            "help": "on a CPU compute in 8 bits: drafts (gad, blockwise; same output) or all (the output is that of "
            "the 8-bit model); --int8 alone means all (default: none; drafts where that pays)",
            "argparse_const": "all",
        },
    )
    strict: int = field(
        default=0,
        metadata={
            "help": f"{', '.join(VERIFIED)}: every call reads N tokens of every sentence, so that in fp16 and bf16 "
            "the output is that of --decoding greedy with the same N, bit for bit; 0: as many as there are"
        },
    )
    shortlist: int = field(
        default=0,
        metadata={
            "help": f"{', '.join(VERIFIED)}: choose among the N likeliest words of the --lattice tables for each "
            "position; not lossless; 0: all words"
        },
    )
    lattice: Optional[str] = field(
        default=None,
        metadata={
            "help": "lattice, --shortlist: folder of tables made by aggdec lattice-tables (default: "
            "lattice.SOURCE-TARGET in the data folder)"
        },
    )
    no_graphs: bool = field(
        default=False,
        metadata={"help": "on a GPU replay no captured graphs: slower, less memory"},
    )
    low_memory: bool = field(
        default=False,
        metadata={
            "help": "on a CPU keep no second copy of the weights, laid out for few rows: slower"
        },
    )
    variant: Optional[str] = field(
        default=None,
        metadata={
            "help": "KEY=VALUE[,KEY=VALUE]: a printed variant of one paper. Keys, explained in docs/options.md: "
            + ", ".join(VARIANTS)
        },
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
METAVARS = {
    "draft_tokens": "auto|N|all",
    "draft_tree": "auto|N",
    "acceptance": "RULE",
    "int8": "none|drafts|all",
    "strict": "N",
    "shortlist": "N",
    "lattice": "FOLDER",
    "draft_file": "FILE",
    "drafter_path": "FILE",
    "variant": "KEY=VALUE",
}


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of :class:`DecodingConfig` to a parser, in a group of their own."""
    group = parser.add_argument_group("decoding by fairseq_aggdec")
    gen_parser_from_dataclass(group, DecodingConfig())
    for action in group._group_actions:
        action.metavar = METAVARS.get(action.dest, action.metavar)
        if action.dest in ACTIONS:
            action.__class__ = ACTIONS[action.dest]
