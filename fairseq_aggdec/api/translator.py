"""Translator, which :func:`~fairseq_aggdec.from_pretrained` returns: sentences in, sentences or hypotheses out."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from torch import Tensor
from tqdm import tqdm

from fairseq_aggdec.api.calls import Call, check_whole
from fairseq_aggdec.api.decoding import EMPTY, BatchDecoder, Hypothesis

# Batches that are read ahead, so that sentences of like length come together.
LOOKAHEAD = 16


class Translator(BatchDecoder):
    """A loaded model and a method of decoding; :func:`~fairseq_aggdec.from_pretrained` makes it.

    Outputs come in the order of the inputs. Sentences of like length are decoded together; with ``max_len_a`` above 0
    an output can depend on its batch, as in stock fairseq, whose limit counts padding. Threads may share a translator:
    they take turns, batch by batch. Pickling it carries the arguments of ``from_pretrained``, not the weights: the
    other process loads the files.

    Its arguments are those of :class:`~fairseq_aggdec.api.decoding.BatchDecoder`.

    Attributes:
        counters: of all that was decoded, see :class:`~fairseq_aggdec.search.counters.Counters`.
    """

    def __repr__(self) -> str:
        return f"Translator({self.name})"

    def __reduce__(self) -> Any:
        if self.made_by is None or self._versions() != self._weights:
            raise TypeError(
                "this Translator cannot be pickled, as its models were not loaded by from_pretrained or have been "
                "changed since: load it in the other process"
            )
        return self.made_by, ()

    def summary(self) -> str:
        """Sentences, tokens, iterations, acceptance and seconds so far, in one line; all 0 with ``stock``."""
        return self.counters.summary()

    def translate(
        self,
        sentences: Iterable[str],
        batch_size: int = 32,
        progress: bool = False,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        prefix: str | Iterable[str] | None = None,
        **options: Any,
    ) -> list[str]:
        """The best output for every sentence.

        Args:
            sentences: text, one sentence each. An empty one is empty again where it has no prefix; fairseq's commands
                decode it.
            batch_size: sentences decoded together at most; 1 for the least waiting, more for throughput.
            progress: show a bar on stderr.
            beam, nbest, prefix: of this call only: beam size, hypotheses per sentence, and how outputs must begin.
            **options: more of this call: ``source_lang``, ``target_lang``, ``max_len_b``, ``min_len``, ``drafts``,
                ``attention``, ``on_token``, ``max_tokens``; see :class:`~fairseq_aggdec.api.calls.Call`.

        Raises:
            TypeError: one string instead of several, a sentence that is no string, or an unknown option.
            ValueError: a sentence longer than the model can read, or a value that the method cannot honour.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model")
        >>> model.translate(["Я знаю що ти тут .", "Це добре ."])
        ['Я знаю , що ти тут .', 'Це добре .']
        >>> model.translate(["Це добре ."], prefix="Це не")
        ['Це не добре .']
        """
        options |= without_none(beam=beam, nbest=nbest, prefix=prefix)
        return list(self.stream(sentences, batch_size, progress=progress, **options))

    def generate(
        self,
        sentences: Iterable[str],
        batch_size: int = 32,
        progress: bool = False,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        prefix: str | Iterable[str] | None = None,
        encoded: Sequence[Tensor] | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Decodes sentences; for each its hypotheses, the best first: ``nbest`` of them at most.

        Arguments and errors are those of :meth:`translate`.

        Args:
            encoded: the tokens (S,) of each sentence, as :meth:`encode` has given them; None: they are made now.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(
        ...     f"{folder}/checkpoint.pt", folder, "iad", spm=f"{folder}/spm.model", draft_tokens="all"
        ... )
        >>> [[best]] = model.generate(["Я знаю що ти тут ."])
        >>> best.text, best.steps, round(best.mean_accepted, 2)
        ('Я знаю , що ти тут .', 3, 2.67)
        >>> best.tokens
        ('▁Я', '▁знаю', '▁,', '▁що', '▁ти', '▁тут', '▁.')
        """
        options |= without_none(beam=beam, nbest=nbest, prefix=prefix)
        return list(self._hypotheses(sentences, batch_size, LOOKAHEAD, progress, options, encoded))

    def stream(
        self,
        sentences: Iterable[str],
        batch_size: int = 32,
        lookahead: int = LOOKAHEAD,
        progress: bool = False,
        *,
        beam: int | None = None,
        nbest: int | None = None,
        prefix: str | Iterable[str] | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """The best outputs one by one, of any number of sentences: memory is bounded by what is read ahead.

        Args:
            sentences: as :meth:`translate` takes them, read while outputs are asked for.
            batch_size, progress, beam, nbest, prefix, **options: as there.
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
        options |= without_none(beam=beam, nbest=nbest, prefix=prefix)
        for ranked in self._hypotheses(sentences, batch_size, lookahead, progress, options):
            yield ranked[0].text if ranked else ""

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        batch_size: int = 32,
        attention: bool = False,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[Hypothesis]:
        """The given outputs with their log-probabilities, as ``fairseq-generate --score-reference`` has them.

        Args:
            sources, targets: text, as many of one as of the other.
            batch_size: pairs in a batch at most.
            attention: give every target its attention.
            source_lang, target_lang: languages of this call, of a model that knows several.

        Raises:
            TypeError: what is no text.
            ValueError: not as many targets as sources, a text that is too long, or a language that the model lacks.

        >>> from fairseq_aggdec import from_pretrained
        >>> folder = "checkpoints/ua_gec"
        >>> model = from_pretrained(f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model")
        >>> right, wrong = model.score(["Це добре ."] * 2, ["Це добре .", "Це не добре ."])
        >>> right.score > wrong.score
        True
        """
        pairs = [_listed(sources), _listed(targets)]
        batch_size = check_whole("batch_size", batch_size)
        if len(pairs[0]) != len(pairs[1]):
            raise ValueError(f"{len(pairs[0])} sources and {len(pairs[1])} targets")
        spoken = {"source_lang": source_lang, "target_lang": target_lang}
        call = Call.of(spoken | {"attention": attention})
        self.language_support.check(call)
        tokens = [self.encode(one, number, source_lang) for number, one in enumerate(pairs[0])]
        wanted = [
            self.encode_target(one, number, target_lang) for number, one in enumerate(pairs[1])
        ]
        return self.score_tokens(tokens, wanted, batch_size, call)

    def _hypotheses(
        self,
        sentences: Iterable[str],
        batch_size: int,
        lookahead: int,
        progress: bool,
        options: dict[str, Any],
        encoded: Sequence[Tensor] | None = None,
    ) -> Iterator[list[Hypothesis]]:
        _check_texts(sentences)
        batch_size = check_whole("batch_size", batch_size)
        lookahead = check_whole("lookahead", lookahead)
        call = Call.of(options)
        self.check(call)
        source, target = call.source_lang, call.target_lang
        total = len(sentences) if isinstance(sentences, Sized) else None
        read, first = call.rows(sentences), 0
        ahead = min(batch_size * lookahead, sys.maxsize)
        with tqdm(total=total, unit="sentence", disable=not progress) as bar:
            while chunk := list(itertools.islice(read, ahead)):
                numbered = [
                    (number, row) for number, row in enumerate(chunk, first) if not _is_empty(row)
                ]
                tokens = [
                    self.encode(row[0], number, source) if encoded is None else encoded[number]
                    for number, row in numbered
                ]
                beside = [
                    (self._output(prefix, target), self._output(draft, target))
                    for _, (_, prefix, draft) in numbered
                ]
                numbers = [number for number, _ in numbered]
                ranked = iter(self.decode_tokens(tokens, numbers, batch_size, call, beside))
                for row in chunk:
                    yield [EMPTY] if _is_empty(row) else next(ranked)
                    bar.update()
                first += len(chunk)


def without_none(**options: Any) -> dict[str, Any]:
    """Options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def _is_empty(row: tuple[str, str, str]) -> bool:
    """Tells whether a sentence has neither text nor a prefix."""
    text, prefix, _ = row
    return isinstance(text, str) and not text.strip() and not prefix.strip()


def _check_texts(sentences: object) -> None:
    if isinstance(sentences, str | bytes):
        raise TypeError("give a list of sentences, not one string: [sentence]")
    if not isinstance(sentences, Iterable):
        raise TypeError(f"give a list of sentences, not {sentences!r:.40}")


def _listed(sentences: Iterable[str]) -> list[str]:
    _check_texts(sentences)
    return list(sentences)
