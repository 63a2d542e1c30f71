"""Decodes and scores batches of token ids for a :class:`Translator`, one thread at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.api.calls import Call, LoadedOptions, check_call, generator_of_call
from fairseq_aggdec.api.languages import Languages
from fairseq_aggdec.api.scoring import add_attention, score_batch
from fairseq_aggdec.api.text import Codec, on_the_host, refuse_other_than_text
from fairseq_aggdec.api.watching import Watcher
from fairseq_aggdec.methods.shared.texts import GivenTexts
from fairseq_aggdec.options.stopping import stock_stoppable
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.stored.held_files import check_held

NOTHING = torch.empty(0, dtype=torch.long)
NO_OPTIONS = Call()


@dataclass(frozen=True)
class Hypothesis:
    """One output for one sentence.

    Attributes:
        text: as :meth:`Translator.translate` gives it, tokenisation undone.
        tokens: symbols of the target dictionary, without ``</s>``.
        score: log-probability in nats, divided by length to the power of ``lenpen`` unless ``unnormalized``.
        token_scores: log-probability of each token in nats; the last one, which has no token, is that of ``</s>``.
        steps: iterations (decoder calls) that it took; None with ``stock``, which does not say.
        mean_accepted: tokens per iteration, ``</s>`` included; 1.0 is one-by-one decoding; None with ``stock``.
        seconds: of its batch, divided by the sentences of the batch.
        attention: (T, S) float32, with ``attention=True``: of every output token, ``</s>`` included, over the source
            tokens with their ``</s>``; the mean over the heads of the last layer, as in stock fairseq.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    token_scores: tuple[float, ...]
    steps: int | None
    mean_accepted: float | None
    seconds: float | None = field(default=None, compare=False)
    attention: Tensor | None = field(default=None, compare=False, repr=False)


# The only output for an empty text, which no model reads.
EMPTY = Hypothesis("", (), 0.0, (), 0, None, 0.0)


class BatchDecoder:
    """Base of :class:`Translator`: models and their generator, shared by threads, which take turns batch by batch.

    Args:
        task, models, generator: of fairseq, on one device.
        codec: between text and tokens.
        nbest: hypotheses per sentence.
        post_process: marks of subwords to remove from outputs, as fairseq's ``--post-process`` names them.
        generation: fairseq's generation options, to build a generator for calls with another ``beam``.
        whole: the loaded models, if each holds several language pairs and ``models`` are the parts for one pair.
    """

    def __init__(
        self,
        task: Any,
        models: Sequence[Any],
        generator: Any,
        codec: Codec,
        nbest: int = 1,
        post_process: str | None = None,
        generation: Any = None,
        whole: Sequence[Any] = (),
    ):
        self.task, self.models, self.generator = task, list(models), generator
        self.codec, self.nbest, self.post_process = codec, nbest, post_process
        self.generation = generation
        # Keys and values, drafters and the languages of a task are of one batch at a time. Options of a call need no
        # turn. A hook of the model that comes back here gets its error.
        self.turn = threading.RLock()
        self.process = os.getpid()
        self.device = next(self.models[0].parameters()).device
        self.decoding = str(task.settings.decoding)
        self.loaded = LoadedOptions.of(self.decoding, generator)
        # Source and target language; reading a configuration is slow.
        self.language_support = Languages(task, whole or models)
        self.languages = self.language_support.trained_pair
        self.longest, self.longest_target = self.language_support.longest()
        self.name = f"{self.decoding}, {len(self.models)} model(s) on {self.device}"
        self.made_by: Callable[[], BatchDecoder] | None = None  # set by from_pretrained
        self._weights = self._versions()
        # What proposes the drafts of a call, by generator.
        self._proposers: dict[int, GivenTexts] = {}

    @property
    def counters(self) -> Counters:
        counters: Counters = self.task.counters
        return counters

    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them.

        Changes are noticed without it, but for a few numbers that are written past PyTorch, through ``.data[...]`` or a
        view of NumPy: these may be seen some hundreds of batches later.
        """
        with self.alone():
            for generator in (self.generator, *self.language_support.generators.values()):
                if hasattr(generator, "refresh"):  # stock fairseq keeps nothing
                    generator.refresh()

    def _versions(self) -> list[tuple[int, int]]:
        """Identities and write counts of all weights."""
        weights = (weight for model in self.language_support.whole for weight in model.parameters())
        return [(id(one), 0 if one.is_inference() else one._version) for one in weights]

    @on_the_host()
    def decode_tokens(
        self,
        tokens: Sequence[Tensor],
        numbers: Sequence[int],
        batch_size: int | None,
        call: Call = NO_OPTIONS,
        beside: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> list[list[Hypothesis]]:
        """Hypotheses of sentences as :meth:`tokens` makes them, none longer than the model can read.

        Args:
            tokens: (S,) int64 each.
            numbers: of the sentences among all: which line of a draft_file belongs to them.
            batch_size: sentences decoded together at most; None: any number.
            call: options of this call.
            beside: the prefix (P,) and the draft (T,) of each sentence, int64, empty where it has none; nothing: none
                has any.
        """
        self.check(call)
        beside = beside or [(NOTHING, NOTHING)] * len(tokens)
        hypotheses: dict[int, list[Hypothesis]] = {}
        # Where calls have languages, in one turn: others have other languages.
        with (
            self.alone() if self.language_support.all else nullcontext(),
            self.language_support.of(call),
        ):
            generator = self.generator_for(call)
            # In stock the minimum length does not hold for a sentence while another of its batch has a prefix.
            for size in sorted({len(prefix) for prefix, _ in beside}):
                chosen = [i for i, (prefix, _) in enumerate(beside) if len(prefix) == size]
                rows = [tokens[i] for i in chosen]
                for sample, places in self._samples(rows, batch_size, call.max_tokens):
                    batch = [chosen[place] for place in places]
                    sample["id"] = torch.tensor([numbers[i] for i in batch]).to(self.device)
                    ranked = self._decode(generator, sample, call, [beside[i] for i in batch])
                    hypotheses |= dict(zip(batch, ranked, strict=True))
        return [hypotheses[i] for i in range(len(tokens))]

    def _decode(
        self,
        generator: Any,
        sample: dict[str, Any],
        call: Call,
        beside: Sequence[tuple[Tensor, Tensor]],
    ) -> list[list[Hypothesis]]:
        """Hypotheses of a batch; ``beside`` as for :meth:`decode_tokens`, of its rows, with prefixes of one length."""
        prefix = torch.stack([tokens_of_one for tokens_of_one, _ in beside]).to(self.device)
        beam = call.beam or self.loaded.beam
        most = min(call.nbest or self.nbest, beam)
        if generator is not self.generator:  # it was made for the beam of an earlier call
            call = replace(call, beam=beam)
        start = time.perf_counter()
        with self.alone():
            watcher = self._watcher(call, sample["id"].tolist())
            sample["drafts"] = [draft.tolist() for _, draft in beside]
            texts = self._texts(generator) if any(sample["drafts"]) else None
            view = generator_of_call(generator, call, texts, watcher)
            if isinstance(
                view, SequenceGenerator
            ):  # which sets this of the models, for all generators
                view.model.set_decoder_beam_size(view.beam_size)
            models = self.language_support.models(call)
            forced = self.language_support.prefix(prefix)
            with stock_stoppable() if self.decoding == "stock" else nullcontext():
                hypotheses = self.task.inference_step(view, models, sample, prefix_tokens=forced)
            hypotheses = [ranked[:most] for ranked in hypotheses]
            if call.attention:
                add_attention(self.task, self.language_support, call, sample, hypotheses)
        seconds = (time.perf_counter() - start) / len(hypotheses)
        if watcher is not None:
            for row, ranked in enumerate(hypotheses):
                watcher.update(row, ranked[0]["tokens"].tolist() if ranked else [])
        return [
            [self._read(one, seconds, call.attention) for one in ranked] for ranked in hypotheses
        ]

    @on_the_host()
    def score_tokens(
        self,
        tokens: Sequence[Tensor],
        targets: Sequence[Tensor],
        batch_size: int | None,
        call: Call,
    ) -> list[Hypothesis]:
        """The given outputs, (T,) int64 with ``</s>`` for each sentence, with their log-probabilities."""
        hypotheses: dict[int, Hypothesis] = {}
        with self.alone(), self.language_support.of(call):
            models = self.language_support.models(call)
            for sample, places in self._samples(tokens, batch_size, None):
                began = time.perf_counter()
                start, _ = self.language_support.started(targets[0])
                begun = [self.language_support.started(targets[i])[1] for i in places]
                check_held(models)
                scored = score_batch(self.task, models, sample, begun, start)
                check_held(models)
                seconds = (time.perf_counter() - began) / len(places)
                for place, one in zip(places, scored, strict=True):
                    hypotheses[place] = self._read(one, seconds, call.attention)
        return [hypotheses[place] for place in range(len(tokens))]

    def _samples(
        self, tokens: Sequence[Tensor], batch_size: int | None, max_tokens: int | None
    ) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Batches on the device, and which of the sentences their rows are."""
        lengths = [len(row) for row in tokens]
        dataset = self.language_support.dataset(tokens, lengths)
        for batch in batches_by_length(lengths, batch_size, max_tokens):
            sample = dataset.collater([dataset[i] for i in batch])
            places = sample["id"].tolist()
            yield utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample), places

    def generator_for(self, call: Call) -> Any:
        """The translator's own; with ``decoding="beam"`` one hypothesis and several are two ways to search."""
        generator, beam = self.generator, call.beam or self.loaded.beam
        alike = (beam == 1) == (self.loaded.beam == 1) or self.decoding != "beam"
        if not self.language_support.other(call) and (
            alike or type(generator) is SequenceGenerator
        ):
            return generator
        if self.generation is None:
            raise ValueError(f"beam={beam}: this translator was made for beam {self.loaded.beam}")
        with self.alone():
            return self.language_support.generator(call, self.generation, beam)

    def check(self, call: Call) -> None:
        """Raises ``ValueError`` in one sentence for what this translator cannot do."""
        check_call(call, self.loaded)
        self.language_support.check(call)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """This thread's turn with the generator; RuntimeError after a fork where PyTorch has several threads."""
        if self.process != os.getpid():
            if torch.get_num_threads() > 1 and self.device.type == "cpu":
                raise RuntimeError(
                    "this process was forked after the model was loaded, where PyTorch hangs with several threads: "
                    "call torch.set_num_threads(1) here, load the model after the fork, or start processes by spawn"
                )
            # Another thread of the parent, which is not here, may have had its turn.
            self.process, self.turn = os.getpid(), threading.RLock()
            for generator in (self.generator, *self.language_support.generators.values()):
                vars(generator).pop("_one_thread", None)
        with self.turn:
            yield

    def _watcher(self, call: Call, numbers: Sequence[int]) -> Watcher | None:
        """Calls ``on_token`` with what is new of a sentence of a batch, whose sentences have these numbers."""
        on_token, reported = call.on_token, dict[int, int]()
        if on_token is None:
            return None

        def tell(place: int, tokens: Sequence[int]) -> None:
            words = self._symbols(tokens)
            new, reported[place] = words[reported.get(place, 0) :], len(words)
            if new:
                on_token(numbers[place], new, self._text(tokens))

        return Watcher(tell)

    def _texts(self, generator: Any) -> GivenTexts:
        """Proposer of the drafts that callers give; it learns, for each generator, what drafts are worth."""
        if id(generator) not in self._proposers:
            texts = GivenTexts(self.task.settings, self.task.target_dictionary)
            self._proposers[id(generator)] = texts
        return self._proposers[id(generator)]

    @on_the_host()
    def tokens(self, text: str, language: str | None = None, side: str = "source") -> Tensor:
        """Text -> (S,) int64 tokens with ``</s>``; ``language``: of the call, None: the translator's own."""
        words = self.language_support.words(side, language)
        tokens: Tensor = words.encode_line(self.codec.encode(text.strip()), add_if_not_exist=False)
        return tokens.long()

    def _output(self, text: str, language: str | None = None) -> Tensor:
        """Text -> (T,) int64 target tokens without ``</s>``."""
        return self.tokens(text, language, "target")[:-1] if text.strip() else NOTHING

    def encode(self, text: str, number: int, language: str | None = None) -> Tensor:
        """Tokens of a text, as :meth:`tokens` makes them; the number is for the message about a sentence that cannot be
        decoded."""
        refuse_other_than_text(text, number)
        tokens = self.tokens(text, language)
        if len(tokens) > self.longest:
            raise ValueError(
                f"sentence {number} has {len(tokens)} tokens with </s>, the model reads at most "
                f"{self.longest}: split it"
            )
        return tokens

    def encode_target(self, text: str, number: int, language: str | None = None) -> Tensor:
        """Tokens, as :meth:`encode` makes them, of a given output."""
        refuse_other_than_text(text, number, "target")
        tokens = self.tokens(text, language, "target")
        if len(tokens) > self.longest_target:
            raise ValueError(
                f"target {number} has {len(tokens)} tokens with </s>, the model writes at most "
                f"{self.longest_target}"
            )
        return tokens

    def _read(self, hypothesis: dict[str, Any], seconds: float, attention: bool) -> Hypothesis:
        """A hypothesis of fairseq in plain types."""
        tokens = hypothesis["tokens"].tolist()
        steps = hypothesis.get("steps")
        return Hypothesis(
            text=self._text(tokens),
            tokens=self._symbols(tokens),
            score=float(hypothesis["score"]),
            token_scores=tuple(hypothesis["positional_scores"].float().tolist()),
            steps=steps,
            mean_accepted=len(tokens) / steps if steps else None,
            seconds=seconds,
            attention=hypothesis["attention"] if attention else None,
        )

    def _symbols(self, tokens: Sequence[int]) -> tuple[str, ...]:
        target = self.task.target_dictionary
        hidden = {target.eos(), *self.language_support.tags}
        return tuple([target[token] for token in tokens if token not in hidden])

    def _text(self, tokens: Sequence[int]) -> str:
        """Target tokens -> text."""
        target = self.task.target_dictionary
        ignored = getattr(self.generator, "symbols_to_strip_from_output", {target.eos()})
        ignored = {*ignored, *self.language_support.tags}
        if self.codec.drop_unk:
            ignored.add(target.unk())
        line = target.string(tokens, self.post_process, extra_symbols_to_ignore=ignored)
        return self.codec.decode(line)


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None, max_tokens: int | None
) -> Iterator[list[int]]:
    """Indices in batches, shortest sentences first.

    >>> list(batches_by_length([5, 1, 2, 4], batch_size=3, max_tokens=8))
    [[1, 2], [3], [0]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = len(batch) == batch_size
        if batch and (full or (max_tokens and (len(batch) + 1) * lengths[i] > max_tokens)):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
