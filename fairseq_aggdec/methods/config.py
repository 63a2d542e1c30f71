"""Every decoding option of the plugin, declared once; the task's options are these beside fairseq's own."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II

from fairseq_aggdec.methods.table import METHODS

DECODING = ChoiceEnum(list(METHODS))
ACCEPTANCE = ChoiceEnum(["exact", "top-beta", "top-k", "distance"])
IAD_MATCH = ChoiceEnum(["aligned", "unique", "longest", "recent"])
END_CONDITION = ChoiceEnum(["first", "all"])
LATTICE_SMOOTHING = ChoiceEnum(["none", "interpolated"])
LATTICE_NORMALISE = ChoiceEnum(["candidates", "vocabulary"])
LATTICE_SEARCH = ChoiceEnum(["serial", "scan"])
DRAFT_FROM = ChoiceEnum(["auto", "source", "file", "interleaved", "lattice", "heads", "none"])
STOP_RULE = ChoiceEnum(["stock", "any"])
LENGTH_PENALTY = ChoiceEnum(["fairseq", "gnmt"])


@dataclass
class DecodingConfig(FairseqDataclass):
    """How ``fairseq-generate`` and its relatives decode."""

    decoding: DECODING = field(
        default="beam",
        metadata={
            "help": "; ".join(f"{name}: {method.help}" for name, method in METHODS.items())
            + ". greedy, iad, gad and blockwise give what --beam 1 gives, unless --acceptance is relaxed"
        },
    )
    # fairseq's own flag, which its generation ignores; no help text, so that fairseq makes no second flag of it.
    bf16: bool = II("common.bf16")
    block_size: Optional[str] = field(
        default=None,
        metadata={
            "help": "gad, nar, blockwise: tokens predicted at once, no more than the model was trained with; all: as "
            "many as that. gad and blockwise also take auto: as many as are worth their cost, from their chances to "
            "stand and measured times, none where drafting does not pay; on a GPU all of a block or none, by batch "
            "(default, if --draft-nodes is not given either: all; on CPU with exact acceptance --draft-nodes auto "
            "--draft-int8, in half precision auto, with --acceptance top-beta --draft-nodes 8 --draft-int8)"
        },
    )
    drafter_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "gad, nar: checkpoint of the drafter (--arch nar_drafter); iad, beam: of the model that "
            "--draft-from names"
        },
    )
    draft_nodes: Optional[str] = field(
        default=None,
        metadata={
            "help": "iad, gad, blockwise: draft a tree of so many tokens for each sentence, the likeliest paths, and "
            "verify them at once: more tokens stand for the cost of a wider window, the output is the same. iad: "
            "copies that branch where the text was wrong before, or paths through the lattice of --draft-from lattice. "
            "auto: as many as are worth their cost, from their chances to stand and times (measured or, of copies on "
            "CPU, usual ones), none where that does not pay; gad and blockwise on a GPU as --block-size auto "
            "(default: the likeliest path only; gad, blockwise: see --block-size)"
        },
    )
    draft_vocabulary: int = field(
        default=0,
        metadata={
            "help": "gad, blockwise: draft among so many first types of the target dictionary only, which fairseq "
            "sorts by frequency: cheaper drafts, with exact acceptance the same output; 0: among all"
        },
    )
    draft_int8: bool = field(
        default=False,
        metadata={
            "help": "gad, blockwise: on CPU compute drafts in 8 bits: cheaper drafts, with exact acceptance the same "
            "output"
        },
    )
    int8: bool = field(
        default=False,
        metadata={
            "help": "beam, greedy, iad, gad, nar, blockwise: on CPU compute all in 8 bits, faster. The output is "
            "that of the 8-bit model, not that of stock; methods that give what --beam 1 gives agree, in any batch"
        },
    )
    strict: int = field(
        default=0,
        metadata={
            "help": "greedy, iad, gad, blockwise: every call of the decoder reads so many tokens of every sentence, "
            "drafted or not, so that in fp16 and bf16 too the output is that of --decoding greedy with the same "
            "--strict, bit for bit; longer drafts are cut. Slower; 0: as many as there are"
        },
    )
    acceptance: ACCEPTANCE = field(
        default="exact",
        metadata={
            "help": "which drafted tokens stand. exact: the model's own choice, lossless; top-beta: one of its "
            "--top-beta best, at most --tolerance behind the best; top-k: one of its --top-k best; distance: a "
            "number at most --epsilon away from its choice (tasks whose symbols are numbers)"
        },
    )
    top_beta: int = field(
        default=3, metadata={"help": "--acceptance top-beta: rank that stands, 1 is exact"}
    )
    tolerance: float = field(
        default=1.0,
        metadata={"help": "--acceptance top-beta: log-probability behind the best, in nats"},
    )
    top_k: int = field(
        default=2, metadata={"help": "--acceptance top-k: rank that stands, 1 is exact"}
    )
    epsilon: int = field(
        default=2, metadata={"help": "--acceptance distance: largest difference that stands"}
    )
    min_block_size: int = field(
        default=1,
        metadata={
            "help": "tokens that an iteration yields at least, right or not; above 1 the output is no longer that of "
            "--beam 1"
        },
    )
    iad_match: IAD_MATCH = field(
        default="aligned",
        metadata={
            "help": "where iad goes on copying after an edit: at a suffix of the output that occurs once in the source "
            "(unique, as in the paper), or, when it occurs several times, at its first occurrence (longest) or at "
            "the next one after the last copied token (recent). aligned is recent, and where no suffix occurs it goes "
            "on behind the rejected token as if that had been replaced. The output is the same, only the speed differs"
        },
    )
    iad_draft_length: str = field(
        default="auto",
        metadata={
            "help": "iad: longest copied draft, in tokens. all: whatever is left of the text, as in the paper; auto: "
            "whatever pays, from what was accepted so far. The output is the same, only the speed differs"
        },
    )
    draft_from: DRAFT_FROM = field(
        default="auto",
        metadata={
            "help": "iad, beam, gad, blockwise: the text that is copied. source: the input; file: the lines of "
            "--draft-file; interleaved, lattice: what the model of --drafter-path decodes; heads (beam): no text, but "
            "what the block heads of the model expect; none (beam): nothing is drafted; auto: the source as long as "
            "that pays. gad, blockwise: source or file is copied as long as copies stand, else beside the draft of the "
            "model. The output is the same, only the speed differs"
        },
    )
    draft_file: Optional[str] = field(
        default=None,
        metadata={
            "help": "--draft-from file: one draft per sentence of the set, in its order, in target tokens as the data "
            "was binarised from; empty lines draft nothing"
        },
    )
    end_condition: END_CONDITION = field(
        default="first",
        metadata={
            "help": "interleaved: a hypothesis ends with the first </s> of a step (first, as in the paper), or when "
            "all words of the step behind it are </s> too (all)"
        },
    )
    stop_rule: STOP_RULE = field(
        default="stock",
        metadata={
            "help": "interleaved: which endings count towards the --beam that stop the search: those among the best "
            "continuations of the sentence (stock, as fairseq does), or of any hypothesis (any, as in Algorithm 1 of "
            "the paper: shorter outputs)"
        },
    )
    length_penalty: LENGTH_PENALTY = field(
        default="fairseq",
        metadata={
            "help": "interleaved: what scores of finished hypotheses are divided by. fairseq: length ** --lenpen; "
            "gnmt: ((5 + length) / 6) ** --lenpen, as in the paper's summaries"
        },
    )
    dedup: int = field(
        default=0,
        metadata={
            "help": "interleaved: write n-grams of up to this many words that directly repeat themselves once; 0: "
            "leave them"
        },
    )
    lattice: Optional[str] = field(
        default=None,
        metadata={
            "help": "lattice, --shortlist: folder of tables that aggdec lattice-tables made (default: "
            "lattice.SOURCE-TARGET in the data folder)"
        },
    )
    shortlist: int = field(
        default=0,
        metadata={
            "help": "greedy, iad, gad, blockwise: choose among the likeliest words of the --lattice tables only, so "
            "many for each target position, which saves most of the projection to the vocabulary; not lossless. "
            "0: all words"
        },
    )
    lattice_candidates: int = field(
        default=64,
        metadata={"help": "lattice: candidates for each target position; of 1 no model is asked"},
    )
    lattice_least_probability: float = field(
        default=0.005,
        metadata={
            "help": "lattice: candidates that are less likely are not scored; 0 scores all --lattice-candidates, as in "
            "the paper"
        },
    )
    lattice_length_window: int = field(
        default=3,
        metadata={
            "help": "lattice: lengths that differ from the predicted one by at most this are searched"
        },
    )
    lattice_smoothing: LATTICE_SMOOTHING = field(
        default="interpolated",
        metadata={
            "help": "lattice: probabilities of candidates as counted (none, as in the paper) or mixed with coarser "
            "counts (interpolated), which small data needs"
        },
    )
    lattice_normalise: LATTICE_NORMALISE = field(
        default="candidates",
        metadata={
            "help": "lattice: over what the probabilities of an edge add up to 1: the candidates of its position, or "
            "the whole vocabulary (slower)"
        },
    )
    lattice_search: LATTICE_SEARCH = field(
        default="serial",
        metadata={
            "help": "lattice: Viterbi search position by position (serial) or as a tree of logarithmic depth (scan); "
            "the output is the same"
        },
    )
    no_weight_packing: bool = field(
        default=False,
        metadata={
            "help": "on CPU, do not keep a second copy of the weights laid out for few rows: slower, less memory"
        },
    )
    no_graphs: bool = field(
        default=False,
        metadata={
            "help": "on a GPU, do not replay the decoder's calls as captured graphs: slower, less memory; the output "
            "is the same"
        },
    )
