"""Every decoding option of the plugin, declared once: name, type, default, help.

:mod:`fairseq_aggdec.methods.config` makes flags and fairseq's configuration of the same fields, and
``docs/options.md`` is printed from them. :mod:`fairseq_aggdec.methods.options.reading` reads any configuration.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from fairseq_aggdec.methods.options.kinds import KINDS, VERIFIED
from fairseq_aggdec.methods.options.rule import Rule

OF_LOOP = ", ".join(VERIFIED)


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """A field that is an option of its own; ``more``: ``choices``, ``const``, the value of the option alone."""
    return field(default=default, metadata={"help": help, "metavar": metavar, **more})


def variant(default: Any, help: str, *choices: str) -> Any:
    """A field that is a key of ``--variant``; no choices: any value of the default's type."""
    return field(default=default, metadata={"variant": Variant(default, help, choices)})


@dataclass(frozen=True)
class Variant:
    """A key of ``--variant``: its default, what it chooses, the values there are; none: any of the default's type."""

    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclass
class Settings:
    """Settings that the methods read, by the names of the options.

    A field with ``help`` is an option of the command line, one with ``variant`` a key of ``--variant``.

    Attributes:
        acceptance: the rule with its parameters; the option is a text.
        always_draft: a model drafts in every iteration where nothing is said of how much.
        eval_bleu: training decodes, to validate.
        said: names of the options and keys that were given.
    """

    decoding: str = option(
        "beam", "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items()), choices=KINDS
    )
    draft_from: str = option(
        "auto",
        "iad, beam: the text that is copied: the source, or the lines of --draft-file; none drafts nothing; auto: the "
        "source as long as that pays",
        choices=("auto", "source", "file", "none"),
    )
    draft_file: str | None = option(
        None,
        "--draft-from file: one draft per sentence of the set, in its order, in target tokens; an empty line drafts "
        "nothing",
        "FILE",
    )
    drafter_path: str | None = option(
        None,
        "gad, nar: checkpoint of the drafter, of --arch nar_drafter",
        "FILE",
    )
    draft_tokens: str | None = option(
        None,
        "longest draft: N tokens, all that there are, or auto, as many as pay. gad, nar, blockwise: tokens predicted "
        "at once, at most those of training; iad: tokens copied at once (default: what pays)",
        "auto|N|all",
    )
    draft_tree: str | None = option(
        None,
        "gad, blockwise: draft a tree of N tokens, the likeliest paths, instead of one path; auto: as many as pay "
        "(default: one path; in fp32 on a CPU: what pays)",
        "auto|N",
    )
    call_price: str = option(
        "measured",
        "iad, gad, blockwise, beam: what calls cost, by which as much is drafted as pays: measured with the first "
        "batch (on a CPU), usual, or numbers as the log prints them, for the same iterations everywhere; no exact "
        "output depends on it",
        "measured|usual|PRICE",
    )
    acceptance: Rule = field(
        default_factory=Rule,
        metadata={
            "help": "iad, gad, blockwise: which drafted tokens are accepted. exact: the model's own choice, lossless; "
            "top-beta:RANK:NATS, top-k:RANK, distance:N: others too; min:TOKENS: at least this many tokens per "
            "iteration, also behind a comma (top-k:2,min:2)",
            "metavar": "RULE",
        },
    )
    int8: str | None = option(
        None,
        "on a CPU compute in 8 bits: drafts (gad, blockwise; same output) or all (the output is that of the 8-bit "
        "model); --int8 alone means all (default: none; drafts where that pays)",
        "none|drafts|all",
        const="all",
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
    lattice: str | None = option(
        None,
        "lattice, --shortlist: folder of tables made by aggdec lattice-tables (default: lattice.SOURCE-TARGET in the "
        "data folder)",
        "FOLDER",
    )
    no_graphs: bool = option(False, "on a GPU replay no captured graphs: slower, less memory")
    low_memory: bool = option(
        False, "on a CPU keep no second copy of the weights, laid out for few rows: slower"
    )
    iad_match: str = variant(
        "aligned",
        "where copying goes on after an edit: at a suffix of the output that occurs once in the text (unique, as in "
        "the paper), at its first occurrence (longest), at the next one after the last copied token (recent), or "
        "there and, where no suffix occurs, behind the rejected token (aligned)",
        *("aligned", "unique", "longest", "recent"),
    )
    end_condition: str = variant(
        "first",
        "interleaved: a hypothesis ends with the first </s> of a step (as in the paper), or when all words behind it "
        "are </s>",
        *("first", "all"),
    )
    stop_rule: str = variant(
        "stock",
        "interleaved: endings that stop the search: among the best continuations of the sentence (stock), or of any "
        "hypothesis (any, as in Algorithm 1 of the paper)",
        *("stock", "any"),
    )
    length_penalty: str = variant(
        "fairseq",
        "interleaved: scores are divided by length ** --lenpen (fairseq) or ((5 + length) / 6) ** --lenpen (gnmt, as "
        "in the authors' code)",
        *("fairseq", "gnmt"),
    )
    dedup: int = variant(
        0,
        "interleaved: an n-gram of up to N words that directly repeats itself is written once; 0: never",
    )
    lattice_candidates: int = variant(
        64, "candidates for each target position; with 1 no model is asked"
    )
    lattice_least_probability: float = variant(
        0.005, "candidates below this probability are not scored; 0 scores all, as in the paper"
    )
    lattice_length_window: int = variant(
        3, "lengths are searched that differ from the predicted one by at most this"
    )
    lattice_smoothing: str = variant(
        "interpolated",
        "probabilities of candidates as counted (none, as in the paper) or mixed with coarser counts",
        *("none", "interpolated"),
    )
    lattice_normalise: str = variant(
        "candidates",
        "the probabilities of an edge add up to 1 over the candidates of its position or over the vocabulary (slower)",
        *("candidates", "vocabulary"),
    )
    always_draft: bool = False
    eval_bleu: bool = False
    said: frozenset[str] = frozenset()

    @property
    def int8_all(self) -> bool:
        return self.int8 == "all"

    def as_given(self, name: str) -> str:
        """Tells how an option is given with its value: ``--strict -1``, ``--variant dedup=-1``."""
        between = "=" if name in VARIANT_FIELDS else " "
        return f"{spelling(name)}{between}{getattr(self, name)}"

    def options(self) -> dict[str, Any]:
        """Every option with its value; the acceptance as a text."""
        values = {name: getattr(self, name) for name in OPTIONS | VARIANT_FIELDS.keys()}
        return values | {"acceptance": str(self.acceptance)}


OPTIONS = {one.name: one for one in fields(Settings) if "help" in one.metadata}
VARIANT_FIELDS = {
    one.name: one.metadata["variant"] for one in fields(Settings) if "variant" in one.metadata
}
# By the key of ``--variant``.
VARIANTS: dict[str, Variant] = {name.replace("_", "-"): one for name, one in VARIANT_FIELDS.items()}
# Fields that only one method reads.
OF_LATTICE = {"lattice", *(name for name in VARIANT_FIELDS if name.startswith("lattice_"))}
OF_INTERLEAVED = {"end_condition", "stop_rule", "length_penalty", "dedup"}


def spelling(name: str) -> str:
    """Tells how a field is written on the command line: ``--draft-tokens``, ``--variant dedup``."""
    dashed = name.replace("_", "-")
    return f"--variant {dashed}" if name in VARIANT_FIELDS else f"--{dashed}"
