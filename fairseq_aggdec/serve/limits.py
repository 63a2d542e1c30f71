"""Limits of what one request of a service may cost, and how much is decoded at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_aggdec.api.calls import Call, LoadedOptions
from fairseq_aggdec.serve.guard import Refused

# Tokens of a sentence in a full batch; a batch of longer sentences has fewer of them.
TOKENS = 100


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of one service.

    Attributes:
        max_batch: sentences decoded together. max_wait_ms: milliseconds that the first of them waits for others.
        max_queue: sentences that may wait. max_bytes: of a request.
        timeout: seconds until a request that was not answered gets 504, and of every phase of a connection.
        keys: of which a request must have one; none: all may ask.
        max_beam: the widest beam that a request may ask for; None: 32, or less where a batch holds less.
        max_len: tokens of the longest output that it may ask for; None: as long as the translator's own.
        max_work: sentences x beam x longest output of a request; None: a full queue with the translator's own options.
        max_attention: numbers of the attention that a request may ask for.
        origins: of web pages whose scripts may ask, such as ``https://example.org``; ``*``: those of all.
        url_prefix: of all paths, such as ``/mt``, where a proxy does not remove it.
    """

    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_queue: int = 1024
    max_bytes: int = 1 << 20
    timeout: float = 60.0
    keys: Sequence[str] = ()
    max_beam: int | None = None
    max_len: int | None = None
    max_work: int | None = None
    max_attention: int = 1_000_000
    origins: Sequence[str] = ()
    url_prefix: str = ""


@dataclass
class Size:
    """Size of the work on one sentence.

    Attributes:
        beam: hypotheses that are searched. source: tokens with ``</s>``.
        output: tokens with ``</s>`` that the longest output may have. least: of the shortest.
        attention: numbers that are given back.
    """

    beam: int = 1
    source: int = 1
    output: int = 1
    attention: int = 0
    least: int = 1

    @property
    def work(self) -> int:
        """Tokens that the search may write."""
        return self.beam * self.output


class RequestLimits:
    """The limits of a service.

    Args:
        loaded: options of its translator. longest: tokens of the longest source that its model reads.
        settings: of the service.

    Attributes:
        rows: hypotheses of a batch at most; they bound its memory.
        beam, length: the widest beam and the longest output, without ``</s>``, that a request may ask for.
        work: ``beam`` times output tokens of all sentences of a request.

    Raises:
        ValueError: a limit that the service's own options exceed.
    """

    def __init__(self, loaded: LoadedOptions, longest: int, settings: ServiceSettings):
        self.loaded, self.settings = loaded, settings
        self.rows = settings.max_batch * loaded.beam
        self.beam = settings.max_beam or min(max(32, loaded.beam), self.rows)
        usual = self._longest(loaded.max_len_b, longest)
        self.length = min(settings.max_len or usual, loaded.most)
        least = loaded.beam * (usual + 1)
        self.work = settings.max_work or settings.max_queue * least
        if not loaded.beam <= self.beam <= self.rows:
            raise ValueError(
                f"--max-beam {self.beam}: it must be from --beam, which is {loaded.beam}, to --max-batch x --beam, "
                f"which is {self.rows}"
            )
        if self.length < usual:
            raise ValueError(
                f"--max-len {self.length}: with the service's own options an output may have {usual} tokens (max_len_b)"
            )
        if self.work < least:
            raise ValueError(
                f"--max-work {self.work}: with the service's own options one sentence may take {least}"
            )

    def _longest(self, max_len_b: int, source: int) -> int:
        """Tokens of the longest output, without ``</s>``."""
        return min(int(self.loaded.max_len_a * source) + max_len_b, self.loaded.most)

    def check(self, call: Call) -> None:
        """Raises ``ValueError`` for an option of a request above its maximum."""
        for name, most in (
            ("beam", self.beam),
            ("max_len_b", self.length),
            ("min_len", self.length),
        ):
            value = getattr(call, name)
            if value is not None and value > most:
                raise ValueError(f"{name}={value}: this service has a {name} of at most {most}")

    def size(self, options: dict[str, Any], source: int) -> Size:
        """The work that a sentence of ``source`` tokens may be, with the options of its call."""
        beam = options.get("beam") or self.loaded.beam
        longest = options.get("max_len_b")
        output = 1 + self._longest(self.loaded.max_len_b if longest is None else longest, source)
        weights = (
            (options.get("nbest") or beam) * output * source if options.get("attention") else 0
        )
        shortest = options.get("min_len")
        least = 1 + (self.loaded.min_len if shortest is None else shortest)
        return Size(beam, source, output, weights, least)

    def refuse_too_many(self, sentences: int) -> None:
        """Raises ``Refused`` (413) for more sentences than the queue can hold."""
        if sentences > self.settings.max_queue:
            raise Refused(413, f"a request may have at most {self.settings.max_queue} sentences")

    def refuse_too_much(self, sizes: Sequence[Size]) -> None:
        """Raises ``Refused`` (413) for a request that is more work than one may be."""
        work = sum(size.work for size in sizes)
        if work > self.work:
            raise Refused(
                413,
                f"the request may take {work} tokens (sentences x beam x longest output), more than the {self.work} of "
                "this service: send fewer sentences, or a smaller beam or max_len_b",
            )
        attention = sum(size.attention for size in sizes)
        if attention > self.settings.max_attention:
            raise Refused(
                413,
                f"the attention may have {attention} numbers (nbest x output x source), more than the "
                f"{self.settings.max_attention} of this service: send fewer sentences, or a smaller nbest or max_len_b",
            )

    def fits(self, count: int, size: Size) -> bool:
        """Tells whether so many sentences, none larger than ``size``, are decoded together."""
        read = max(
            size.source, size.output if size.attention else 0
        )  # attention reads outputs as well
        return count == 1 or (
            count <= self.settings.max_batch
            and count * size.beam <= self.rows
            and count * read <= self.settings.max_batch * TOKENS
            # An output of usual length ends long before this; one that may not end is decoded beside few others.
            and count * size.beam * size.least <= self.rows * TOKENS // 4
        )


def largest(sizes: Sequence[Size]) -> Size:
    """Returns sizes that none of these exceeds."""
    return Size(*(max(getattr(one, name) for one in sizes) for name in vars(sizes[0])))
