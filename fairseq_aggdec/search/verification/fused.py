"""The bookkeeping of an iteration on a GPU in three launches: the twin of
:mod:`~fairseq_aggdec.search.verification.on_device`, where it can say the same."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.search.acceptance import Acceptance, TopBeta, exact, split, trusting
from fairseq_aggdec.search.board import ENDED, Board, Rows
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Row
from fairseq_aggdec.search.verification.on_device import Bookkeeping, WindowSlots
from fairseq_aggdec.windows.transfer import send_into

# What the kernels have room for: slots of a row.
MOST_SLOTS = 128
MOST_PLACES = 4096  # of an output whose n-grams may not repeat


def bookkeeping(rules: Rules, accept: Acceptance, device: torch.device) -> Bookkeeping:
    """The fused kernels where they run and know the rules, else PyTorch's operators."""
    _, rule = split(accept)
    known = (rule in (exact, trusting) or type(rule) is TopBeta) and not rules.own_rules
    fused = FusedBookkeeping if known else Bookkeeping
    kind = gpu.operators.either(fused, Bookkeeping, device, decides_alike)
    return kind(rules, accept)


class FusedBookkeeping(Bookkeeping):
    """Takes exact and top-beta acceptance, with a least number of tokens or none."""

    @property
    def symbols(self) -> gpu.logits.RuledTokens | None:
        # Tokens likelier than a drafted one are counted for others than the first; what repeats is hidden before.
        rules, (_, accept) = self.rules, split(self.accept)
        counts = isinstance(accept, TopBeta) and accept.beta > 1
        counts = counts or bool(rules.no_repeat_ngram_size)
        return None if counts else gpu.logits.RuledTokens(rules.pad, rules.unk, rules.eos)

    def begin(
        self, board: Board, rows: Rows, block: Tensor | None, drafter: DeviceDrafter
    ) -> WindowSlots:
        count, width = len(rows.owners), 1 if block is None else block.size(1) + 1
        tokens, outputs = rows.owners.new_empty(2, count, width).unbind(0)
        length = rows.owners.new_empty(count)
        arguments = int(drafter.ragged), int(drafter.reads_features), board.numbers, board.tokens
        out = tokens, outputs, length
        gpu.operators.ops().begin(count, width, board.room[1], *arguments, rows.owners, block, *out)
        return WindowSlots(tokens, outputs, None if block is None else length)

    def end(
        self,
        board: Board,
        rows: Rows,
        slots: WindowSlots,
        logits: Tensor,
        features: Tensor | None,
        parts: Tensor | None = None,
    ) -> None:
        count, width = slots.tokens.shape
        precision = gpu.operators.PRECISIONS.get(logits.dtype)
        rules, (tokens, outputs, length) = self.rules, slots
        long = rules.no_repeat_ngram_size and board.room[1] > MOST_PLACES
        if precision is None or not logits.is_contiguous() or width > MOST_SLOTS or long:
            super().end(board, rows, slots, logits, features)
            return
        sure, accept = split(self.accept)
        # 0: only the verifier's choice is accepted
        beta, tolerance = (accept.beta, accept.tolerance) if isinstance(accept, TopBeta) else (0, 0)
        if length is None:
            features = None
        units = board.features.size(1) * board.features.element_size() // 2
        seen = parts
        if seen is None:
            shape = (
                count * width,
                gpu.operators.parts(count * width, logits.size(1), logits.device),
                gpu.logits.WORDS_SEEN,
            )
            seen = tokens.new_empty(shape, dtype=torch.int32)
        hidden = (
            seen.new_empty(count * width, gpu.logits.WORDS_SEEN)
            if rules.no_repeat_ngram_size
            else None
        )
        arguments = (
            *(width, board.room[1], seen.size(1), logits.size(1), board.width, precision),
            *(rules.pad, rules.unk, rules.eos, rules.unk_penalty, int(rules.free_end)),
            *(rules.no_repeat_ngram_size, -1 if accept is trusting else sure, beta, tolerance),
            *(rows.owners, board.prefix, logits, tokens, outputs, length, seen, hidden),
            *(board.numbers, board.tokens, board.scores, board.emitted, board.drafted),
            *(board.accepted, board.flags, features, board.features, units),
        )
        if hidden is not None:
            gpu.operators.ops().ban(count * width, *arguments)
        if parts is None:
            gpu.operators.ops().look(count * width * seen.size(1), *arguments)
        gpu.operators.ops().verify(count, *arguments)


def _twins(device: torch.device, count: int) -> gpu.operators.Twins:
    def work(kind: type[Bookkeeping]) -> Callable[[], None]:
        books = kind(Rules(1, 3, 2), exact)
        board = Board((count, 64), 0, 0, device, torch.float16, pad=1)
        board.set([Row(i, [2], end=60, floor=0) for i in range(count)])
        send_into(board.owners[:count], list(range(count)))
        logits = torch.randn(count, gpu.operators.TYPES, generator=torch.Generator().manual_seed(7))
        on_device, drafter = logits.to(device, torch.float16), DeviceDrafter()

        def iteration() -> None:
            rows = board.rows(board.owners[:count])
            slots = books.begin(board, rows, None, drafter)
            books.end(board, rows, slots, on_device, None)

        return iteration

    return gpu.operators.Twins(work(FusedBookkeeping), work(Bookkeeping))


@gpu.operators.tries("begin", "ban", "look", "verify", twins=_twins)
def decides_alike(device: torch.device) -> bool:
    """Tells whether some iterations leave the same on a board of PyTorch's operators and on one of the kernels."""
    drafter = DeviceDrafter()
    drafter.ragged = drafter.reads_features = True
    # In the last case no token may occur twice, and some are drafted again.
    cases: list[tuple[int, Acceptance, int, int, int]] = [
        *(
            (1, exact, 0, TYPES, TYPES),
            (4, exact, 0, TYPES, TYPES),
            (4, TopBeta(3, 1.0), 1, 8, TYPES),
        ),
        (1, exact, 0, MANY_TYPES, MANY_TYPES),
    ]
    for width, accept, ngram, drafted_types, types in cases:
        steps = list(_steps(width, drafted_types, types))
        for dtype in gpu.operators.PRECISIONS:
            rules = Rules(1, UNK, 2, unk_penalty=0.5, no_repeat_ngram_size=ngram)
            twins = [
                (kind(rules, accept), _board(device, MANY_POSITIONS // width - 1))
                for kind in (Bookkeeping, FusedBookkeeping)
            ]
            for logits, block, features in steps:
                drafted = block.to(device) if width > 1 else None
                for books, board in twins:
                    rows = board.rows(board.owners[: len(logits)])
                    slots = books.begin(board, rows, drafted, drafter)
                    # end() changes the logits in place.
                    copied = logits.flatten(0, 1).to(device, dtype, copy=True)
                    books.end(board, rows, slots, copied, features.to(device))
            pairs = zip(*(written(board) for _, board in twins), strict=True)
            if not all(torch.allclose(plain, fused, 1e-4, 1e-4) for plain, fused in pairs):
                return False
    return True


UNK = 3  # whose logits are penalised
# Types of a vocabulary of several parts; positions from which on a block reads all of them, a thread several groups.
TYPES, MANY_POSITIONS = 2500, 160
MANY_TYPES = 2**18 + 4101  # beyond 18 bits


def _steps(width: int, drafted_types: int, types: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Logits (R, W, V), drafts (R, W - 1) and features of some iterations, of few rows and of many."""
    chance = torch.Generator().manual_seed(7)
    for count in (4,) if types == MANY_TYPES else (4, MANY_POSITIONS // width, 4):
        logits = torch.rand(count, width, types, generator=chance)
        if types == MANY_TYPES:
            logits[:, :, -2] = 2.0
        logits[1::4, :, UNK] = 1.3  # less than others with its penalty
        logits[3::4, :, UNK] = 3.0  # more all the same
        # The largest logit of some positions is there twice.
        logits[::2, :, -1] = logits[::2].amax(-1)
        block = torch.randint(4, drafted_types, (count, width - 1), generator=chance)
        logits[::2, :-1].scatter_(2, block[::2].unsqueeze(2), 5.0)  # the likeliest tokens
        yield logits, block, torch.randn(count * width, 2, generator=chance).half()


def _board(device: torch.device, sentences: int) -> Board:
    """Sentences of which the first ends soon and the second has forced tokens; the fourth row has none."""
    board = Board((sentences, 20), 2, 2, device, torch.float16, pad=1)
    ends = Row(0, [2], end=3, floor=0), Row(1, [2], end=12, floor=4, prefix=[7, 8])
    board.set([*ends, *(Row(i, [2], end=12, floor=0) for i in range(2, sentences))])
    send_into(board.owners, [2, 0, 1, sentences, *range(3, sentences)])
    return board


def written(board: Board) -> list[Tensor]:
    """All that counts on a board, on the host: neither what is written nowhere, nor features that none reads."""
    sentences, length = board.room[0], board.room[1] - 1
    numbers = board.numbers[:sentences].cpu()
    per_token = board.tokens, board.scores, board.emitted, board.drafted, board.accepted
    features = board.features[:sentences].cpu()[numbers[:, ENDED] == 0]
    return [
        numbers,
        board.flags.cpu(),
        features,
        *(x[:sentences, :length].cpu() for x in per_token),
    ]
