"""Guards of a generator's ``_generate``: one thread at a time, and stock's search where a model needs it."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.engine.member import LeftToStock
from fairseq_aggdec.options.stock_generator import blocks_as_stock
from fairseq_aggdec.options.stopping import stock_stoppable
from fairseq_aggdec.search.engines import of_call
from fairseq_aggdec.search.errors import check_best
from fairseq_aggdec.search.rules import repeats_on_device

P = ParamSpec("P")
R = TypeVar("R")
Generate = Callable[..., list[list[dict[str, Any]]]]


def or_stock(generate: Generate) -> Generate:
    """Makes of a generator's ``_generate`` one that leaves a batch to stock fairseq where a model, or what was put
    onto the generator, asks for it."""

    @functools.wraps(generate)
    def decoded_or_stock(self: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        gap = of_call(self, sample, *args, **kwargs)
        if gap is None:
            _check_sources(sample["net_input"]["src_tokens"])
            try:
                return generate(self, sample, *args, **kwargs)
            except LeftToStock as left:
                gap = left.reason
        if gap is not None:
            self.leave(gap)
        return _as_stock(self, sample, *args, **kwargs)

    return decoded_or_stock


def _check_sources(source: Tensor) -> None:
    if not source.numel():
        shape = tuple(source.shape)
        raise ValueError(
            f"src_tokens of shape {shape}: a batch needs a sentence, and a sentence a token"
        )


@torch.no_grad()
def _as_stock(generator: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Finds what stock fairseq finds with the generator's options; arguments as for ``SequenceGenerator._generate``."""
    before = generator.repeat_ngram_blocker
    block_repeats(generator, generator.no_repeat_ngram_size)
    try:
        with stock_stoppable():
            nbest = SequenceGenerator._generate(generator, sample, *args, **kwargs)
    finally:
        _set_blocker(generator, before)
    check_best(nbest)
    lengths = [len(ranked[0]["tokens"]) if ranked else 0 for ranked in nbest]
    generator.counters.add_by_stock(lengths)
    for hypothesis in (hypothesis for ranked in nbest for hypothesis in ranked):
        hypothesis |= {"steps": len(hypothesis["tokens"]), "history": []}  # a call for each token
    return nbest


def block_repeats(generator: Any, size: int) -> None:
    """Has stock's search repeat no n-gram of ``size`` tokens; 0: as many as it likes.

    Args:
        generator: a ``SequenceGenerator``; another one (a scorer), or one with a blocker of its own, is left as it is.
    """
    if size > 0 and isinstance(generator, SequenceGenerator) and blocks_as_stock(generator):
        _set_blocker(generator, functools.partial(_ban_repeats, size, generator.pad))


def _set_blocker(generator: Any, blocker: Any) -> None:
    """Puts a module, a function or None in place of the generator's blocker, which may be either."""
    generator.__dict__.pop("repeat_ngram_blocker", None)
    generator._modules.pop("repeat_ngram_blocker", None)
    generator.repeat_ngram_blocker = blocker


def _ban_repeats(
    size: int, pad: int, tokens: Tensor, log_probs: Tensor, sentences: int, beam: int, step: int
) -> Tensor:
    """Bans what would repeat an n-gram, as our own searches do; stock's blocker bans nothing on a CPU.

    Args:
        size: the n of the n-grams. pad: padding, which stock never chooses.
        tokens: (sentences * beam, T) int64, start symbol first, of which ``step`` more are written.
        log_probs: (sentences * beam, V), changed in place.
        sentences, beam, step: as stock gives them.
    """
    free = (log_probs > -torch.inf).sum(
        1, keepdim=True
    ) > 1  # neither by the caller nor by the length
    written = tokens[:, : step + 1]
    last = torch.full((len(written), 1), step, device=tokens.device)
    banned = torch.zeros_like(log_probs, dtype=torch.bool)
    banned.scatter_(1, repeats_on_device(written, last, size, pad).squeeze(1), value=True)
    return log_probs.masked_fill_(banned & free, -torch.inf)


class OneThread:
    """A context that a second caller may not enter: it gets an error, where waiting could wait for itself.

    A copy is free, whatever the original is: copies of a generator share nothing that this guards.

    Attributes:
        take: whether nobody was inside, and the caller is now.
        give_back: the caller leaves.
    """

    def __init__(self) -> None:
        lock = threading.Lock()
        self.take, self.give_back = functools.partial(lock.acquire, blocking=False), lock.release

    def __enter__(self) -> None:
        """Raises ``RuntimeError`` while another call is inside."""
        if not self.take():
            raise RuntimeError(
                "this generator is decoding a batch already, and a hook of its model cannot use it: give every thread "
                "a generator of its own, or use fairseq_aggdec.from_pretrained(), whose Translator lets threads take "
                "turns"
            )

    def __exit__(self, *error: object) -> None:
        self.give_back()

    def __reduce__(self) -> tuple[Any, ...]:
        return OneThread, ()


def one_thread(thing: Any) -> OneThread:
    """The guard of an object."""
    attributes = vars(thing)
    lock: OneThread | None = attributes.get("_one_thread")
    # setdefault is atomic, and needs no constructor that subclasses would have to call first.
    return lock or attributes.setdefault("_one_thread", OneThread())


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that runs once at a time on each object; see :class:`OneThread` for what a second call gets."""

    @functools.wraps(method)
    def guarded(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.__dict__.get("_one_thread") or one_thread(self):
            return method(self, *args, **kwargs)

    return guarded
