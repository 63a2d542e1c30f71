"""Sentences of waiting requests, decoded together by one thread."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from torch import Tensor

from fairseq_aggdec.api.decoding import NOTHING, Hypothesis
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.options.options import LengthError
from fairseq_aggdec.options.stopping import Stopped, stoppable
from fairseq_aggdec.serve.guard import Refused
from fairseq_aggdec.serve.limits import RequestLimits, Size, largest

logger = logging.getLogger(__name__)

# A request that was decoded for a second stands in the queue as if it had come so many seconds later.
BEHIND = 4.0

# The new tokens of a sentence and the text of its output so far.
OnTokens = Callable[[Sequence[str], str], None]


@dataclass(eq=False)
class Turn:
    """Place of one request among the others: those with the earliest ``due``, seconds of the monotonic clock, come
    first."""

    due: float = field(default_factory=monotonic)


@dataclass(eq=False)
class WaitingJob:
    """One sentence that waits, or one piece of work that no other shares a batch with.

    Attributes:
        sentence: text. tokens: (S,) int64, its own.
        options: of the call. Sentences with the same options are decoded together.
        prefix: a text that its output begins with. draft: a text that it may resemble.
        listener: is called in the decoding thread when tokens are certain.
        work: what to do instead; its result is the job's.
        size: of its work. turn: of its request.
        answer: the hypotheses, best first. A job whose answer was cancelled is dropped.
        arrived: seconds of the monotonic clock.
    """

    sentence: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""
    draft: str = ""
    listener: OnTokens | None = None
    tokens: Tensor = NOTHING
    work: Callable[[], Any] | None = None
    size: Size = field(default_factory=Size)
    turn: Turn = field(default_factory=Turn)
    answer: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    arrived: float = field(default_factory=monotonic)

    @property
    def kind(self) -> object:
        """Equal for jobs of one batch."""
        return self if self.work is not None else sorted(self.options.items())


class Batcher:
    """The queue of jobs and the thread that decodes them. All methods run in the event loop.

    Args:
        limits: of requests and batches. max_queue: sentences that may wait.
        max_wait: seconds that a sentence waits for others while nothing is decoded.
        decoded: is told of every batch how many sentences and tokens it had.
    """

    def __init__(
        self,
        translator: Translator,
        limits: RequestLimits,
        max_wait: float,
        decoded: Callable[[int, int], None] = lambda sentences, tokens: None,
    ):
        self.translator, self.limits, self.max_wait = translator, limits, max_wait
        self.max_batch, self.max_queue = limits.settings.max_batch, limits.settings.max_queue
        self.decoded, self.ending = decoded, False
        self.decoding: Sequence[WaitingJob] = []
        self.waiting: deque[WaitingJob] = deque()
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "decoding")

    def __len__(self) -> int:
        """Sentences that wait, those of clients that have left not counted."""
        return sum(not job.answer.done() for job in self.waiting)

    def submit(self, jobs: Sequence[WaitingJob]) -> None:
        """Puts the jobs of a request into the queue, all or none.

        ``Refused`` (413) if they are too many or too much work, 429 if they are too many now, 503 at the end.
        """
        self.limits.refuse_too_many(len(jobs))
        self.limits.refuse_too_much([job.size for job in jobs])
        if self.ending:
            raise ending()
        if len(self) + len(jobs) > self.max_queue:
            raise Refused(429, "too many sentences are waiting: try again later")
        turn = Turn()
        for job in jobs:
            job.turn = turn
        self.waiting.extend(jobs)
        self.arrived.set()

    def end(self) -> None:
        """Refuses (503) all that has no answer yet."""
        self.ending = True
        for job in (*self.decoding, *self.waiting):
            if not job.answer.done():
                job.answer.set_exception(ending())

    async def run(self) -> None:
        """Decodes for ever; the task is cancelled when the service ends."""
        try:
            while True:
                await self._some()
                if batch := self._take():
                    await self._decode(batch)
        finally:
            self.end()
            self.thread.shutdown(wait=True)

    async def _some(self) -> None:
        """Waits for a job, and then for others as long as the first of them may wait."""
        while True:
            self.arrived.clear()
            self._drop_cancelled()
            left = None
            if self.waiting:
                left = self.waiting[0].arrived + self.max_wait - monotonic()
                if left <= 0 or len(self.waiting) >= self.max_batch or self.waiting[0].work:
                    return
            try:
                await asyncio.wait_for(self.arrived.wait(), left)
            except asyncio.TimeoutError:  # not the built-in one before Python 3.11
                return

    def _drop_cancelled(self) -> None:
        self.waiting = deque(job for job in self.waiting if not job.answer.done())

    def _take(self) -> list[WaitingJob]:
        """The first job of all turns and those behind it that may be decoded with it."""
        self._drop_cancelled()
        if not self.waiting:
            return []
        first, *others = sorted(self.waiting, key=lambda job: job.turn.due)
        batch, kind, size = [first], first.kind, first.size
        for job in others:
            together = largest([size, job.size])
            if job.kind == kind and self.limits.fits(len(batch) + 1, together):
                batch.append(job)
                size = together
        taken = set(map(id, batch))
        self.waiting = deque(job for job in self.waiting if id(job) not in taken)
        return batch

    async def _decode(self, batch: list[WaitingJob]) -> None:
        loop, began = asyncio.get_running_loop(), monotonic()
        self.decoding = batch
        try:
            answers = await loop.run_in_executor(self.thread, self._answers, batch)
        except Stopped:  # nobody waits for any of its answers
            return
        except Exception as error:
            logger.exception("a batch of %d sentences could not be decoded", len(batch))
            if len(batch) > 1:  # whichever it is, the others get their answers
                for job in batch:
                    if not job.answer.done():
                        await self._decode([job])
                return
            if not batch[0].answer.done():
                batch[0].answer.set_exception(_public(error))
            return
        finally:
            self.decoding = []
            for turn in {job.turn for job in batch}:
                turn.due += BEHIND * (monotonic() - began)
        for job, answer in zip(batch, answers, strict=True):
            if not job.answer.done():
                job.answer.set_result(answer)

    def _answers(self, batch: Sequence[WaitingJob]) -> list[Any]:
        """Runs in the decoding thread, until nobody waits for an answer of the batch any more."""
        with stoppable(lambda: all(job.answer.done() for job in batch)):
            return self._decoded(batch)

    def _decoded(self, batch: Sequence[WaitingJob]) -> list[Any]:
        if batch[0].work is not None:
            return [batch[0].work()]
        options = dict(batch[0].options)
        if any(job.prefix for job in batch):
            options["prefix"] = [job.prefix for job in batch]
        if any(job.draft for job in batch):
            options["drafts"] = [job.draft for job in batch]
        if any(job.listener for job in batch):

            def on_token(number: int, tokens: Sequence[str], text: str) -> None:
                if listener := batch[number].listener:
                    listener(tokens, text)

            options["on_token"] = on_token
        sentences = [job.sentence for job in batch]
        nbest: list[list[Hypothesis]] = self.translator.generate(
            sentences,
            batch_size=self.max_batch,
            encoded=[job.tokens for job in batch],
            **options,
        )
        self.decoded(len(batch), sum(len(ranked[0].tokens) + 1 for ranked in nbest if ranked))
        return nbest


def ending() -> Refused:
    return Refused(503, "the service is ending: try again later")


def _public(error: Exception) -> Exception:
    """Says what a client is told: the details of a fault may name files of this machine and stay in the log."""
    if isinstance(error, LengthError):  # of what it asked for and what its sentence allows
        return Refused(400, str(error))
    return error if isinstance(error, Refused) else Refused(500, "the sentence was not decoded")
