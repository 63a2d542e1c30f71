"""Describes what one call of a :class:`~fairseq_aggdec.api.translator.Translator` may ask for, and a generator that
does it."""

from __future__ import annotations

import copy
import difflib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from fairseq_aggdec.api.text import refuse_other_than_text
from fairseq_aggdec.api.watching import Watcher
from fairseq_aggdec.methods.options.kinds import kind_of
from fairseq_aggdec.search.acceptance import trusting
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from fairseq_aggdec.search.guards import one_thread

if TYPE_CHECKING:
    from fairseq_aggdec.methods.shared.texts import GivenTexts

# Option of a call -> the attribute of fairseq's generator.
ATTRIBUTES = {"beam": "beam_size", "max_len_b": "max_len_b", "min_len": "min_len"}
LEAST = {"beam": 1, "nbest": 1, "max_len_b": 0, "min_len": 0, "max_tokens": 1}
# Option -> whether a value is of its kind, and what that is.
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "drafts": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str),
        "a list with one text per sentence, not one string",
    ),
    "prefix": (lambda value: isinstance(value, Iterable), "a text, or one for each sentence"),
    "attention": (lambda value: value in (True, False), "True or False"),
    "on_token": (callable, "a function"),
}
# The number of a sentence, its new tokens, the text of its output so far.
OnToken = Callable[[int, Sequence[str], str], None]


@dataclass(frozen=True)
class Call:
    """The options of one call; None leaves what :func:`~fairseq_aggdec.from_pretrained` was told.

    Attributes:
        beam: beam size, with ``decoding`` ``beam``, ``stock`` or ``interleaved``.
        nbest: hypotheses per sentence, at most ``beam``.
        max_len_b: tokens of the longest output, beside ``max_len_a`` times those of the source.
        min_len: tokens of the shortest output, without ``</s>``.
        prefix: text that the output must begin with: one for all sentences, or one for each (``""``: free).
        source_lang, target_lang: languages of this call, of a model that knows several.
        drafts: a text for each sentence that its output may resemble, such as the translation before an edit. It
            changes the speed and, with exact acceptance, never the output. ``""`` where there is none.
        attention: give every hypothesis its attention.
        on_token: called as ``on_token(number, tokens, text)`` whenever tokens of a sentence are certain.
        max_tokens: source tokens of a batch, padding included, at most.
    """

    beam: int | None = None
    nbest: int | None = None
    max_len_b: int | None = None
    min_len: int | None = None
    prefix: str | Iterable[str] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    drafts: Iterable[str] | None = None
    attention: bool = False
    on_token: OnToken | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Call:
        """The call that keyword arguments ask for; errors name the option that is wrong."""
        for name, value in list(options.items()):
            if name not in cls.__dataclass_fields__:
                known = list(cls.__dataclass_fields__)
                near = difflib.get_close_matches(name, [*known, "batch_size", "progress"], 2)
                hint = f"did you mean {', '.join(near)}?" if near else f"there are {known}"
                raise TypeError(f"a call has no option {name!r}: {hint}")
            if name in LEAST and value is not None:
                options = options | {name: check_whole(name, value, LEAST[name])}
            elif name in CHECKS and value is not None:
                fits, wanted = CHECKS[name]
                if not fits(value):
                    raise TypeError(f"{name}={value!r:.40}: it must be {wanted}")
        return cls(**options)

    def rows(self, sentences: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """Each sentence with its prefix and its draft, ``""`` where it has none; reads no further than asked for."""
        beside = {"prefix": self.prefix, "drafts": self.drafts}
        texts = [
            repeat(option or "") if option is None or isinstance(option, str) else iter(option)
            for option in beside.values()
        ]
        number = -1
        for number, sentence in enumerate(sentences):
            row = [next(text, None) for text in texts]
            for name, one in zip(beside, row, strict=True):
                if not isinstance(one, str):
                    kind = "nothing" if one is None else f"a {type(one).__name__}"
                    raise ValueError(
                        f'sentence {number}: {name} has {kind} for it: give a string, "" for none'
                    )
                refuse_other_than_text(one, number, f"{name} of sentence")
            yield sentence, str(row[0]), str(row[1])
        for (name, option), text in zip(beside.items(), texts, strict=True):
            if not isinstance(text, repeat) and next(text, None) is not None:
                raise ValueError(
                    f"{name} has more texts than the {number + 1} sentences: {option!r:.40}"
                )


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """The whole number that a value is, of NumPy too; ``ValueError`` for none or one below ``least``."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name}={value!r:.40}: it must be a whole number of at least {least}")
    return number


@dataclass(frozen=True)
class LoadedOptions:
    """Options a translator was loaded with.

    Attributes:
        most: tokens of an output that the model has positions for. types: of the target dictionary.
        copies: it verifies texts that are proposed. The others: as in :class:`Call`.
    """

    decoding: str
    beam: int
    max_len_a: float
    max_len_b: int
    min_len: int
    most: int
    types: int
    copies: bool

    @classmethod
    def of(cls, decoding: str, made: Any) -> LoadedOptions:
        lengths = made.max_len_a, made.max_len_b, made.min_len, made.max_len - 1
        return cls(decoding, made.beam_size, *lengths, made.vocab_size, _copies(made))


def check_call(call: Call, loaded: LoadedOptions) -> None:
    """Raises ``ValueError`` in one sentence for what a translator cannot do."""
    beam = call.beam if call.beam is not None else loaded.beam
    if beam > 1 and call.beam is not None and not kind_of(loaded.decoding).searches:
        raise ValueError(
            f'beam={beam}: decoding="{loaded.decoding}" finds one hypothesis; load the model with decoding="beam"'
        )
    if call.beam is not None and 2 * beam > loaded.types:
        raise ValueError(f"beam={beam}: it is too wide for a dictionary of {loaded.types} types")
    if call.nbest is not None and call.nbest > beam:
        raise ValueError(f"nbest={call.nbest}: it must be 1 to beam, which is {beam}")
    if call.drafts is not None and not loaded.copies:
        raise ValueError(
            f'drafts: decoding="{loaded.decoding}" verifies no drafts: use "beam" or "iad"'
        )
    longest = loaded.max_len_b if call.max_len_b is None else call.max_len_b
    shortest = loaded.min_len if call.min_len is None else call.min_len
    changed = call.min_len is not None or call.max_len_b is not None
    if changed and not loaded.max_len_a and shortest > longest:
        raise ValueError(f"min_len={shortest}: it must be at most max_len_b, which is {longest}")
    if shortest > loaded.most:
        raise ValueError(
            f"min_len={shortest}: the model writes at most {loaded.most} tokens and </s>"
        )


def _copies(generator: Any) -> bool:
    """Tells whether a generator verifies texts that are proposed."""
    kinds = DraftAndVerifyGenerator | BeamGenerator
    return isinstance(generator, kinds) and getattr(generator, "accept", None) is not trusting


def generator_of_call(
    generator: Any, call: Call, texts: GivenTexts | None, watcher: Watcher | None
) -> Any:
    """Makes a view of a generator that has the options of a call; without options it is the generator itself.

    A view is a shallow copy with other settings. It shares models, verifier and what is kept from batch to batch. Stock
    search, stock's alignments and other people's tasks read attributes of a generator, so they see these options too.

    Args:
        texts: proposes the drafts of this batch. watcher: gets tokens as they become certain; None: nobody does.
    """
    settings: dict[str, Any] = {
        attribute: getattr(call, name)
        for name, attribute in ATTRIBUTES.items()
        if getattr(call, name) is not None
    }
    if isinstance(generator, BeamGenerator):
        if texts is not None:
            settings |= {"texts": texts.texts_of, "ahead": True}
        if watcher is not None:
            settings["watch"] = watcher.searches
    elif _copies(generator):
        if texts is not None:
            settings["drafter"] = texts
        if watcher is not None:
            settings["watch"] = watcher.committed
    if not settings:
        return generator
    one_thread(generator)  # a view shares its guard
    view = copy.copy(generator)
    vars(view).update(settings)
    return view
