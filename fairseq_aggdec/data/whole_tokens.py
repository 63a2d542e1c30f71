"""Tokens that a text may hold as they are: they get their id, and what is between them is cut into pieces.

The tokenizers of Hugging Face transformers work so with their special and added tokens (``</s>``, ``<mask>``, a code of
a language, what ``add_tokens`` added); fairseq's encoders cut them into pieces. ``aggdec convert`` writes such tokens
beside the subword model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "whole_tokens.json"
CODE = re.compile(">>.+<<")  # of the target language, before a sentence for Marian


@dataclass(frozen=True)
class WholeToken:
    """A token of a text.

    Attributes:
        content: as it stands in a text. symbol: of fairseq's dictionary.
        lstrip, rstrip: blanks before, behind it are dropped.
        single_word: it counts only where it is a word of its own.
    """

    content: str
    symbol: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class WholeTokens:
    """A subword encoder of fairseq that leaves tokens whole.

    Args:
        subwords: fairseq's encoder for the text between them.
        tokens: in any order; where several begin at one place, the longest counts.
        codes: a code ``>>fra<<`` at the beginning of a text is a symbol, as for Marian.
    """

    def __init__(self, subwords: Any, tokens: Sequence[WholeToken], codes: bool = False):
        self.subwords, self.codes = subwords, codes
        self.tokens = {token.content: token for token in tokens}
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, x: str) -> str:
        """A text as symbols with spaces between them."""
        pieces = []
        for part in self._parts(x):
            token = self.tokens.get(part)
            pieces.append(self._cut(part) if token is None else token.symbol)
        return " ".join(filter(None, pieces))

    def decode(self, x: str) -> str:
        text: str = self.subwords.decode(x)
        return text

    def _parts(self, text: str) -> list[str]:
        """The text in parts, of which those of :attr:`tokens` are whole tokens."""
        parts = [part for part in re.split(f"({self.pattern.pattern})", text) if part]
        for place, part in enumerate(parts):
            token = self.tokens.get(part)
            if token is None:
                continue
            left = parts[place - 1] if place else ""
            right = parts[place + 1] if place + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[place + 1] = right.lstrip()
            if token.lstrip and left:
                parts[place - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[place - 1] += part
                parts[place] = ""
            elif token.single_word and right and right[0] != " ":
                parts[place + 1] = part + parts[place + 1]
                parts[place] = ""
        return [part for part in parts if part]

    def _cut(self, text: str) -> str:
        code = CODE.match(text) if self.codes else None
        rest = CODE.sub("", text) if self.codes else text
        pieces: str = self.subwords.encode(rest)
        return pieces if code is None else f"{code[0]} {pieces}"


def save(folder: Path, tokens: Sequence[WholeToken], codes: bool) -> None:
    """Writes the tokens beside the subword model in a folder."""
    text = json.dumps({"codes": codes, "tokens": [asdict(one) for one in tokens]}, indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def with_whole_tokens(subwords: Any, settings: Any) -> Any:
    """An encoder of fairseq, which leaves the tokens whole that a file beside its model names; without such a file as
    it is.

    Args:
        subwords: the encoder, or None. settings: its configuration, which names its files, or None.

    Raises:
        ValueError: the file is damaged.
    """
    if subwords is None or settings is None:
        return subwords
    named = settings if isinstance(settings, Mapping) else vars(settings)
    for value in named.values():
        path = Path(value).parent / FILE if isinstance(value, str) and value else None
        if path is not None and path.is_file():
            return _read(path, subwords)
    return subwords


def _read(path: Path, subwords: Any) -> WholeTokens:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        tokens = [WholeToken(**one) for one in stored["tokens"]]
        texts = all(isinstance(one.content, str) and one.content for one in tokens)
        if not texts or not all(isinstance(one.symbol, str) for one in tokens):
            raise ValueError("a token is no text")
        return WholeTokens(subwords, tokens, stored["codes"] is True)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): convert the model anew") from error
