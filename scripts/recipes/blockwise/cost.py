"""What block heads cost: parameters, and time that they add to a call of the decoder (random weights, no data).

    python -m scripts.recipes.blockwise.cost --sizes small base big --threads 1 --output docs/results/blockwise-cost

A call verifies a window of k tokens per row; the heads then propose the next block at one position per row. That is
two parts: the heads' own layer, which the layout and --head-hidden-dim decide, and one more pass of k - 1 rows
through the vocabulary projection, which every layout pays. Models without --identity-first-head, such as those that are
fine-tuned, also pass head 1 through the layer at all k positions of the window: that is the column 'head 1', which is
not part of what is added. All are timed in turn, medians. The last columns are what is added when drafts
are chosen from a quarter of the vocabulary, with --int8 drafts, and with both.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor, nn
from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the architecture)
from fairseq_aggdec.bench.timing import synchronise
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.heads import FastHeads
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.linear import some_outputs
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.models.block_heads import DENSE, PER_HEAD, BlockHeads
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from fairseq_aggdec.windows.draft import Proposing
from fairseq_aggdec.windows.window import Window
from scripts.random_models import SIZES, Size

START, SOURCE = 10, 24  # committed tokens and length of the source
TITLE = "Block heads: parameters and time per call"
COLUMNS = (
    "layout",
    "hidden per head",
    "heads, M parameters",
    "of the model",
    "window 1, ms",
    "window k, ms",
    "heads' layer, ms",
    "head 1, ms",
    "vocabulary, ms",
    "added to window k",
    "with a quarter of the vocabulary",
    "in 8 bits",
    "both",
)


@dataclass
class Cost:
    """One layout at one size and batch size. Times in seconds, medians.

    Attributes:
        head_parameters, model_parameters: the latter without the heads.
        window_one, window_k: a call of the base model with one and with k tokens per row, its logits included.
        layer, vocabulary, quarter: what proposing takes: the heads' layer; the projection and its best types; the
            same over a quarter of the vocabulary.
        layer_int8, vocabulary_int8, quarter_int8: the same in 8 bits.
        first: head 1 through the layer at every position of a window of k, where it is not the identity.
    """

    size: str
    batch_size: int
    threads: int
    block_size: int
    layout: str
    hidden: int
    head_parameters: int
    model_parameters: int
    window_one: float
    window_k: float
    layer: float
    vocabulary: float
    quarter: float
    layer_int8: float
    vocabulary_int8: float
    quarter_int8: float
    first: float

    @property
    def added(self) -> float:
        """What the heads add to a call, as a share of it."""
        return (self.layer + self.vocabulary) / self.window_k

    @property
    def added_by_quarter(self) -> float:
        return (self.layer + self.quarter) / self.window_k

    @property
    def added_in_int8(self) -> float:
        return (self.layer_int8 + self.vocabulary_int8) / self.window_k

    @property
    def added_by_quarter_in_int8(self) -> float:
        return (self.layer_int8 + self.quarter_int8) / self.window_k


# -- models


def build_base(size: Size) -> Any:
    """A random Transformer in evaluation mode; its vocabulary has ``size.types`` types, fairseq's own included."""
    flags = [
        "--arch",
        "transformer",
        *size.flags(),
        "--share-all-embeddings",
        "-s",
        "src",
        "-t",
        "tgt",
    ]
    dictionary = Dictionary()
    for index in range(size.types - len(dictionary)):
        dictionary.add_symbol(f"w{index}")
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        for side in ("src", "tgt"):
            dictionary.save(str(Path(folder, f"dict.{side}.txt")))
        parser = options.get_training_parser(default_task="translation")
        args = options.parse_args_and_arch(parser, input_args=[folder, *flags])
        config = convert_namespace_to_omegaconf(args)
        torch.manual_seed(1)
        return tasks.setup_task(config.task).build_model(config.model).eval()


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class Calls:
    """The calls of a decoder that are timed, on random input.

    Args:
        model: the base model.
        block_size: k.
        rows: batch size.
    """

    def __init__(self, model: Any, block_size: int, rows: int):
        decoder = model.decoder
        self.block_size = block_size
        weight = decoder.output_projection.weight
        self.device, words = weight.device, weight.size(0)
        self.decoder = CachedDecoder(decoder)
        self.quarter = words // 4
        self.int8 = linear([decoder.output_projection], Precision(int8=True))
        part = some_outputs(decoder.output_projection, slice(self.quarter))
        self.quarter_int8 = linear([part], Precision(int8=True))
        states = torch.randn(SOURCE, rows, decoder.embed_dim, device=self.device)
        out: Any = {"encoder_out": [states], "encoder_padding_mask": []}
        self.decoder.start(out, rows, START + block_size)
        self.read(self.window(rows, 0, START))
        self.one = self.window(rows, START, 1)
        self.k = self.window(rows, START, block_size)
        self.features = torch.randn(rows, decoder.embed_dim, device=self.device)
        self.verified = torch.randn(rows * block_size, decoder.embed_dim, device=self.device)
        self.proposals = torch.randn(rows * (block_size - 1), decoder.embed_dim, device=self.device)

    def window(self, rows: int, start: int, width: int) -> Window:
        tokens = torch.full((rows * width,), 5, device=self.device)
        return Window(tokens, [start] * rows, [width] * rows)

    def read(self, window: Window) -> Tensor:
        """A call as the loop makes it: logits of every position and the best type of each."""
        return first_largest(self.decoder.packed.project_vocabulary(self.decoder.features(window)))

    def base(self) -> dict[str, Callable[[], object]]:
        """What does not depend on the heads' layer."""
        return {
            "window 1": lambda: self.read(self.one),
            "window k": lambda: self.read(self.k),
            "vocabulary": lambda: first_largest(
                self.decoder.packed.project_vocabulary(self.proposals)
            ),
            "quarter": lambda: first_largest(
                self.decoder.packed.draft_projection(Proposing(types=self.quarter))(self.proposals)
            ),
            "vocabulary in 8 bits": lambda: first_largest(self.int8(self.proposals)),
            "quarter in 8 bits": lambda: first_largest(self.quarter_int8(self.proposals)),
        }

    def layer(self, heads: BlockHeads, int8: bool = False) -> Callable[[], object]:
        fast = FastHeads(heads, Precision(int8=int8))
        return lambda: fast.others(self.features, self.block_size)

    def first(self, heads: BlockHeads) -> Callable[[], object]:
        fast = FastHeads(heads)
        return lambda: fast.first(self.verified)


# -- measuring


def in_turn(
    calls: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of each call, one after the other in every round; two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            synchronise()
            start = clock()
            call()
            synchronise()
            if turn >= 2:
                times[name].append(clock() - start)
    return {name: statistics.median(found) for name, found in times.items()}


@torch.inference_mode()
def measure(
    name: str, rows: int, hidden: Sequence[int], args: argparse.Namespace, model: Any
) -> list[Cost]:
    """All layouts at one size and batch size."""
    calls = Calls(model, args.block_size, rows)
    timed = calls.base()
    variants = {}
    for layout in args.layouts:
        for units in hidden:
            heads = BlockHeads(args.block_size, SIZES[name].dim, units, layout, identity_first=True)
            # Of all heads' weights head 1 reads these: its own hidden units or, when dense, everybody's.
            read = units * args.block_size if layout == DENSE else units
            head_1 = BlockHeads(1, SIZES[name].dim, read)
            for module in (heads, head_1):
                module.requires_grad_(False).to(calls.device)
            variants[f"{layout} {units}"] = (layout, units, parameters(heads))
            timed[f"{layout} {units}"] = calls.layer(heads)
            timed[f"{layout} {units} in 8 bits"] = calls.layer(heads, int8=True)
            timed[f"{layout} {units}, head 1"] = calls.first(head_1)
    clock = time.process_time if args.cpu_time else time.perf_counter
    seconds = in_turn(timed, args.repeats, clock)
    return [
        Cost(
            name,
            rows,
            torch.get_num_threads(),
            args.block_size,
            layout,
            units,
            count,
            parameters(model),
            seconds["window 1"],
            seconds["window k"],
            seconds[variant],
            seconds["vocabulary"],
            seconds["quarter"],
            seconds[f"{variant} in 8 bits"],
            seconds["vocabulary in 8 bits"],
            seconds["quarter in 8 bits"],
            seconds[f"{variant}, head 1"],
        )
        for variant, (layout, units, count) in variants.items()
    ]


# -- tables


def markdown(costs: Sequence[Cost]) -> str:
    """One table per size and batch size."""
    parts = []
    for key in dict.fromkeys((cost.size, cost.batch_size) for cost in costs):
        chosen = [cost for cost in costs if (cost.size, cost.batch_size) == key]
        size, first = SIZES[key[0]], chosen[0]
        parts.append(
            f"**{key[0]} ({size.layers}+{size.layers} layers, {size.dim}/{size.hidden}, {size.types} types, "
            f"{first.model_parameters / 1e6:.1f} M parameters), batch {key[1]}, k = {first.block_size}, "
            f"{first.threads} thread{'s' if first.threads > 1 else ''}**\n"
        )
        parts.append("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        parts += [row(cost) for cost in chosen]
        parts.append("")
    return "\n".join(parts)


def row(cost: Cost) -> str:
    cells = (
        cost.layout,
        str(cost.hidden),
        f"{cost.head_parameters / 1e6:.2f}",
        f"{100 * cost.head_parameters / cost.model_parameters:.0f} %",
        *(
            f"{1e3 * seconds:.2f}"
            for seconds in (
                cost.window_one,
                cost.window_k,
                cost.layer,
                cost.first,
                cost.vocabulary,
            )
        ),
        f"{100 * cost.added:.0f} %",
        f"{100 * cost.added_by_quarter:.0f} %",
        f"{100 * cost.added_in_int8:.0f} %",
        f"{100 * cost.added_by_quarter_in_int8:.0f} %",
    )
    return "| " + " | ".join(cells) + " |"


# -- command line


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "base"])
    parser.add_argument(
        "--layouts", nargs="+", choices=(DENSE, PER_HEAD), default=[DENSE, PER_HEAD]
    )
    parser.add_argument(
        "--head-hidden-dim",
        type=int,
        nargs="+",
        metavar="H",
        help="hidden units per head (default: those of the feed-forward layer, and a quarter and a 16th of them)",
    )
    parser.add_argument("--block-size", type=int, default=8, metavar="K")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32], metavar="B")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor instead of wall clock, for a busy machine; one thread, no GPU",
    )
    parser.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    args = parser.parse_args(arguments)
    numbers = {"--block-size": args.block_size - 1, "--threads": args.threads}
    numbers |= {"--repeats": args.repeats, "--batch-sizes": min(args.batch_sizes)}
    numbers["--head-hidden-dim"] = min(args.head_hidden_dim or [1])
    if args.cpu_time and (args.threads > 1 or not args.cpu):
        parser.error("--cpu-time needs --cpu and --threads 1: it adds up what threads take")
    for option, value in numbers.items():
        if value < 1:
            parser.error(f"{option}: too small; there must be 2 heads and 1 of anything else")
    return args


def main(arguments: Sequence[str]) -> None:
    args = parse_arguments(arguments)
    torch.set_num_threads(args.threads)
    costs: list[Cost] = []
    for name in tqdm(args.sizes, desc="sizes", leave=False, disable=None):
        model = build_base(SIZES[name])
        if torch.cuda.is_available() and not args.cpu:
            model.cuda()
        units = SIZES[name].hidden
        for rows in args.batch_sizes:
            hidden = args.head_hidden_dim or [units, units // 4, units // 16]
            costs += measure(name, rows, hidden, args, model)
    command = machine.command("scripts.recipes.blockwise.cost", arguments)
    results = [asdict(cost) | {"added": cost.added} for cost in costs]
    write_table(args.output, TITLE, command, markdown(costs), results)
    print(markdown(costs))


if __name__ == "__main__":
    main(sys.argv[1:])
