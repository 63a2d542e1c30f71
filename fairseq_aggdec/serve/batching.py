"""Sentences of waiting requests, decoded together by one thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from fairseq_aggdec.api.decoding import Hypothesis
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.options.options import LengthError
from fairseq_aggdec.serve.guard import Refused

logger = logging.getLogger(__name__)

# The new tokens of a sentence and the text of its output so far.
OnTokens = Callable[[Sequence[str], str], None]


@dataclass(eq=False)
class WaitingJob:
    """One sentence that waits, or one piece of work that no other shares a batch with.

    Attributes:
        sentence: text.
        options: of the call. Sentences with the same options are decoded together.
        draft: a text that its output may resemble.
        told: is called in the decoding thread when tokens are certain.
        work: what to do instead; its result is the job's.
        answer: the hypotheses, best first. A job whose answer was cancelled is dropped.
        arrived: seconds of the monotonic clock.
    """

    sentence: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    draft: str = ""
    told: OnTokens | None = None
    work: Callable[[], Any] | None = None
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
        max_batch: sentences decoded together at most. max_queue: sentences that may wait.
        max_wait: seconds that a sentence waits for others while nothing is decoded.
        decoded: is told of every batch how many sentences and tokens it had.
    """

    def __init__(
        self,
        translator: Translator,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        decoded: Callable[[int, int], None] = lambda sentences, tokens: None,
    ):
        self.translator, self.max_batch, self.max_wait = translator, max_batch, max_wait
        self.max_queue, self.decoded = max_queue, decoded
        # Of a batch at most, whatever beam its requests ask for: they bound its memory.
        self.hypotheses = max_batch * translator.own.beam
        self.waiting: deque[WaitingJob] = deque()
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "decoding")

    def __len__(self) -> int:
        """Sentences that wait, those of clients that have left not counted."""
        return sum(not job.answer.done() for job in self.waiting)

    def submit(self, jobs: Sequence[WaitingJob]) -> None:
        """Puts jobs into the queue, all or none: Refused (413, 429) if they are more than it can hold ever, or now."""
        self.refuse_too_many(len(jobs))
        if len(self) + len(jobs) > self.max_queue:
            raise Refused(429, "too many sentences are waiting: try again later")
        self.waiting.extend(jobs)
        self.arrived.set()

    def refuse_too_many(self, sentences: int) -> None:
        """Raises ``Refused`` (413) for more sentences than the queue can hold."""
        if sentences > self.max_queue:
            raise Refused(413, f"a request may have at most {self.max_queue} sentences")

    def check_beam(self, beam: int | None) -> None:
        """Raises ``ValueError`` for a beam that is wider than the hypotheses of a whole batch."""
        if beam is not None and beam > self.hypotheses:
            raise ValueError(f"beam={beam}: this service has a beam of at most {self.hypotheses}")

    def size(self, job: WaitingJob) -> int:
        """How many sentences like this one are decoded together: the fewer, the wider their beam."""
        beam = job.options.get("beam") or self.translator.own.beam
        return max(1, min(self.max_batch, self.hypotheses // beam))

    async def run(self) -> None:
        """Decodes for ever; the task is cancelled when the service ends."""
        try:
            while True:
                await self._some()
                if batch := self._take():
                    await self._decode(batch)
        finally:
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
            except TimeoutError:
                return

    def _drop_cancelled(self) -> None:
        self.waiting = deque(job for job in self.waiting if not job.answer.done())

    def _take(self) -> list[WaitingJob]:
        """The first job and those behind it that may be decoded with it."""
        self._drop_cancelled()
        if not self.waiting:
            return []
        kind, size = self.waiting[0].kind, self.size(self.waiting[0])
        batch = [job for job in self.waiting if job.kind == kind][:size]
        taken = set(map(id, batch))
        self.waiting = deque(job for job in self.waiting if id(job) not in taken)
        return batch

    async def _decode(self, batch: list[WaitingJob]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self.thread, self._answers, batch)
        except Exception as error:
            logger.exception("a batch of %d sentences could not be decoded", len(batch))
            if len(batch) > 1:  # whichever it is, the others get their answers
                for job in batch:
                    await self._decode([job])
                return
            if not batch[0].answer.done():
                batch[0].answer.set_exception(_told(error))
            return
        for job, answer in zip(batch, answers, strict=True):
            if not job.answer.done():
                job.answer.set_result(answer)

    def _answers(self, batch: Sequence[WaitingJob]) -> list[Any]:
        """Runs in the decoding thread."""
        if batch[0].work is not None:
            return [batch[0].work()]
        options = dict(batch[0].options)
        if any(job.draft for job in batch):
            options["drafts"] = [job.draft for job in batch]
        if any(job.told for job in batch):

            def on_token(number: int, tokens: Sequence[str], text: str) -> None:
                if told := batch[number].told:
                    told(tokens, text)

            options["on_token"] = on_token
        sentences = [job.sentence for job in batch]
        found: list[list[Hypothesis]] = self.translator.generate(
            sentences, batch_size=self.max_batch, **options
        )
        self.decoded(len(batch), sum(len(ranked[0].tokens) + 1 for ranked in found if ranked))
        return found


def _told(error: Exception) -> Exception:
    """What a client is told: the details of a fault may name files of this machine and stay in the log."""
    if isinstance(error, LengthError):  # of what it asked for and what its sentence allows
        return Refused(400, str(error))
    return error if isinstance(error, Refused) else Refused(500, "the sentence was not decoded")
