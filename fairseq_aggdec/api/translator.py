"""What :func:`~fairseq_aggdec.from_pretrained` returns: sentences in, sentences or hypotheses out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from torch import Tensor
from tqdm import tqdm

from fairseq_aggdec.api.text import Codec
from fairseq_aggdec.search.counters import Counters

# Batches that are read ahead, so that sentences of like length come together.
LOOKAHEAD = 16


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
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    token_scores: tuple[float, ...]
    steps: int | None
    mean_accepted: float | None


class Translator:
    """A loaded model and a method of decoding; :func:`~fairseq_aggdec.from_pretrained` makes it.

    Outputs come in the order of the inputs. Sentences of like length are decoded together; with ``max_len_a`` above 0
    an output can depend on its batch, as in stock fairseq, whose limit counts padding. Threads
    may share it: they take turns, batch by batch.

    Args:
        task, models, generator: of fairseq, on one device.
        codec: between text and tokens.
        nbest: hypotheses per sentence.
        post_process: marks of subwords to remove from outputs, as fairseq's ``--post-process`` names them.

    Attributes:
        counters: of all that was decoded, see :class:`~fairseq_aggdec.search.counters.Counters`.
    """

    def __init__(
        self,
        task: Any,
        models: Sequence[Any],
        generator: Any,
        codec: Codec,
        nbest: int = 1,
        post_process: str | None = None,
    ):
        self.task, self.models, self.generator = task, list(models), generator
        self.codec, self.nbest, self.post_process = codec, nbest, post_process
        # The generator holds the state of one batch. A hook of the model that comes back here gets its error.
        self.turn = threading.RLock()
        self.device = next(self.models[0].parameters()).device
        self.longest, _ = utils.resolve_max_positions(
            task.max_positions(), *(model.max_positions() for model in self.models)
        )
        decoding = str(task.cfg.decoding)
        self.name = f"{decoding}, {len(self.models)} model(s) on {self.device}"

    def __repr__(self) -> str:
        return f"Translator({self.name})"

    @property
    def counters(self) -> Counters:
        counters: Counters = self.task.counters
        return counters

    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them.

        Changes are noticed without it, but for a few numbers that are written past PyTorch, through ``.data[...]`` or a
        view of NumPy: these may be seen some hundreds of batches later.
        """
        refresh = getattr(self.generator, "refresh", None)  # stock fairseq keeps nothing
        if refresh is not None:
            with self.turn:
                refresh()

    def summary(self) -> str:
        """Sentences, tokens, iterations, acceptance and seconds so far, in one line; all 0 with ``stock``."""
        return self.counters.summary()

    def translate(
        self, sentences: Iterable[str], batch_size: int = 32, progress: bool = False
    ) -> list[str]:
        """The best output for every sentence.

        Args:
            sentences: text, one sentence each; an empty one is decoded as the model does it.
            batch_size: sentences decoded together at most; 1 for the least waiting, more for throughput.
            progress: show a bar on stderr.

        Raises:
            TypeError: one string instead of several, or a sentence that is no string.
            ValueError: a sentence longer than the model can read, or ``batch_size`` below 1.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model")
        >>> model.translate(["Я знаю що ти тут .", "Це добре ."])
        ['Я знаю , що ти тут .', 'Це добре .']
        """
        return list(self.stream(sentences, batch_size, progress=progress))

    def generate(
        self, sentences: Iterable[str], batch_size: int = 32, progress: bool = False
    ) -> list[list[Hypothesis]]:
        """For every sentence its hypotheses, the best first: ``nbest`` of them at most.

        Arguments and errors are those of :meth:`translate`.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(
        ...     f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model", iad_draft_length="all"
        ... )
        >>> [[best]] = model.generate(["Я знаю що ти тут ."])
        >>> best.text, best.steps, round(best.mean_accepted, 2)
        ('Я знаю , що ти тут .', 3, 2.67)
        >>> best.tokens
        ('▁Я', '▁знаю', '▁,', '▁що', '▁ти', '▁тут', '▁.')
        """
        return list(self._hypotheses(sentences, batch_size, LOOKAHEAD, progress))

    def stream(
        self,
        sentences: Iterable[str],
        batch_size: int = 32,
        lookahead: int = LOOKAHEAD,
        progress: bool = False,
    ) -> Iterator[str]:
        """The best outputs one by one, of any number of sentences: memory is bounded by what is read ahead.

        Args:
            sentences: as :meth:`translate` takes them, read while outputs are asked for.
            batch_size, progress: as there.
            lookahead: batches that are read before one is decoded; 1 answers a batch as soon as it is there.

        Raises:
            As :meth:`translate`.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model")
        >>> lines = iter(["Це добре .", "Я знаю що ти тут ."])
        >>> for line in model.stream(lines, batch_size=1, lookahead=1):
        ...     print(line)
        Це добре .
        Я знаю , що ти тут .
        """
        for ranked in self._hypotheses(sentences, batch_size, lookahead, progress):
            yield ranked[0].text if ranked else ""

    def _hypotheses(
        self, sentences: Iterable[str], batch_size: int, lookahead: int, progress: bool
    ) -> Iterator[list[Hypothesis]]:
        if isinstance(sentences, str | bytes):
            raise TypeError("give a list of sentences, not one string: [sentence]")
        if batch_size < 1 or lookahead < 1:
            raise ValueError(
                f"batch_size={batch_size}, lookahead={lookahead}: both must be at least 1"
            )
        total = len(sentences) if isinstance(sentences, Sized) else None
        read, first = iter(sentences), 0
        with tqdm(total=total, unit="sentence", disable=not progress) as bar:
            while chunk := list(itertools.islice(read, batch_size * lookahead)):
                for ranked in self._decode_chunk(chunk, first, batch_size):
                    yield ranked
                    bar.update()
                first += len(chunk)

    def _decode_chunk(
        self, sentences: Sequence[str], first: int, batch_size: int
    ) -> list[list[Hypothesis]]:
        """Hypotheses of sentences that are in memory; ``first`` is the number of the first of them."""
        tokens = [self._encode(sentence, first + i) for i, sentence in enumerate(sentences)]
        return self.decode_tokens(tokens, range(first, first + len(tokens)), batch_size)

    def decode_tokens(
        self,
        tokens: Sequence[Tensor],
        numbers: Sequence[int],
        batch_size: int | None,
        max_tokens: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Hypotheses of sentences as :meth:`tokens` makes them, none longer than the model can read.

        Args:
            tokens: (S,) int64 each.
            numbers: of the sentences among all: which line of a draft_file belongs to them.
            batch_size: sentences decoded together at most. max_tokens: their tokens with padding. None: any number.
        """
        lengths = [len(row) for row in tokens]
        dataset = self.task.build_dataset_for_inference(tokens, lengths)
        found: dict[int, list[Hypothesis]] = {}
        for batch in batches_by_length(lengths, batch_size, max_tokens):
            sample = dataset.collater([dataset[i] for i in batch])
            places = sample["id"].tolist()
            sample["id"] = torch.tensor([numbers[i] for i in places])
            sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
            with self.turn:
                hypotheses = self.task.inference_step(self.generator, self.models, sample)
            for place, ranked in zip(places, hypotheses, strict=True):
                found[place] = [self._read(hypothesis) for hypothesis in ranked[: self.nbest]]
        return [found[i] for i in range(len(tokens))]

    def tokens(self, sentence: str) -> Tensor:
        """Text -> (S,) int64 source tokens with ``</s>``."""
        line = self.codec.encode(sentence.strip())
        tokens: Tensor = self.task.source_dictionary.encode_line(line, add_if_not_exist=False)
        return tokens.long()

    def _encode(self, sentence: str, number: int) -> Tensor:
        """As :meth:`tokens`; the number is for the message about one that cannot be decoded."""
        refuse_other_than_text(sentence, number)
        tokens = self.tokens(sentence)
        if len(tokens) > self.longest:
            raise ValueError(
                f"sentence {number} has {len(tokens)} tokens with </s>, the model reads at most "
                f"{self.longest}: split it"
            )
        return tokens

    def _read(self, hypothesis: dict[str, Any]) -> Hypothesis:
        """A hypothesis of fairseq in plain types."""
        target = self.task.target_dictionary
        tokens = hypothesis["tokens"].int().cpu()
        ignored = getattr(self.generator, "symbols_to_strip_from_output", {target.eos()})
        line = target.string(tokens, self.post_process, extra_symbols_to_ignore=ignored)
        steps = hypothesis.get("steps")
        return Hypothesis(
            text=self.codec.decode(line),
            tokens=tuple(target[token] for token in tokens.tolist() if token != target.eos()),
            score=float(hypothesis["score"]),
            token_scores=tuple(hypothesis["positional_scores"].float().tolist()),
            steps=steps,
            mean_accepted=len(tokens) / steps if steps else None,
        )


def refuse_other_than_text(sentence: object, number: int) -> None:
    """Raises ``TypeError`` for what is no string, ``ValueError`` for one that is no Unicode text."""
    if not isinstance(sentence, str):
        hint = ": decode it first" if isinstance(sentence, bytes) else ""
        raise TypeError(
            f"sentence {number} is {sentence!r:.40} of type {type(sentence).__name__}, not a string{hint}"
        )
    try:
        sentence.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"sentence {number} is no Unicode text: character {error.start} is half a surrogate pair"
        ) from None


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


def best_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
