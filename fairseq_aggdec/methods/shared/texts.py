"""Drafting from a text that is at hand: the lines of a file, or what the caller gives (``--draft-from``).

The text takes the place of the source in Algorithm 1 of Ge et al. (section 3.1): it is drafted whole, and after a
bifurcation drafting goes on where a suffix of the output occurs in it once. The output stays the verifier's.
"""

import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_aggdec.data.lines import read_lines
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.shared.amounts import copied_length
from fairseq_aggdec.search.errors import check_tokens
from fairseq_aggdec.windows.transfer import on_host

logger = logging.getLogger(__name__)


class FileDrafter(CopyDrafter):
    """Drafts the lines of a file, by the sentences' numbers in their set.

    Args:
        sizes: sentences of the sets that are loaded, one of which the file is for; empty: not known.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, or has another number of lines than any set has sentences.
    """

    def __init__(self, path: str, dictionary: Dictionary, match: str, sizes: Collection[int] = ()):
        super().__init__(dictionary.eos(), match)
        if not Path(path).is_file():
            raise FileNotFoundError(f"--draft-file {path} does not exist.")
        self.path, self.dictionary = path, dictionary
        try:
            self.lines = read_lines(path)
        except UnicodeDecodeError as error:
            raise ValueError(f"--draft-file {path} is no UTF-8 text ({error.reason})") from None
        if sizes and len(self.lines) not in sizes:
            raise ValueError(
                f"--draft-file {path} has {len(self.lines)} lines, and the set {' or '.join(map(str, sizes))} "
                "sentences: give one line per sentence"
            )

    def reads(self, sample: Mapping) -> list[Any]:
        """Texts that are read of a batch on the device beside its source."""
        return [sample["id"]] if "id" in sample else []

    def copied(self, sample: Mapping) -> list[list[int]]:
        if "id" not in sample:
            raise ValueError(
                "--draft-from file: fairseq-interactive does not number its sentences, use fairseq-generate"
            )
        numbers = on_host(sample["id"]).tolist()
        if max(numbers) >= len(self.lines):
            raise ValueError(
                f"--draft-file {self.path} has {len(self.lines)} lines, and the set a sentence {max(numbers) + 1}: "
                "give one line per sentence"
            )
        return [
            self.dictionary.encode_line(
                self.lines[number], add_if_not_exist=False, append_eos=False
            ).tolist()
            for number in numbers
        ]


class GivenTexts(CopyDrafter):
    """Drafts texts that the caller of a batch gives: ``drafts`` of its sample, target tokens of each sentence.

    Args:
        cfg: decoding options. dictionary: of the target.
    """

    def __init__(self, cfg: Any, dictionary: Dictionary):
        settings = read_settings(cfg)
        super().__init__(dictionary.eos(), settings.iad_match)
        self.dictionary = dictionary
        self.limit_drafts(copied_length(settings))

    def copied(self, sample: Mapping) -> Sequence[Sequence[int]]:
        texts: Sequence[Sequence[int]] = sample["drafts"]
        words = set(itertools.chain.from_iterable(texts)) - {NEVER_DRAFTED}
        check_tokens(len(self.dictionary), drafts=[list(words)])
        return texts
