"""Between text and the tokens of a model: what the checkpoint says, or what the caller names."""

import itertools
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import encoders
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_aggdec.data.whole_tokens import with_whole_tokens

# Settings of fairseq's tokenisers that name a file.
FILE_SETTINGS = ("_codes", "_encoder_json", "_merges", "_model", "_path", "_vocab", "_vocab_bpe")


@dataclass
class Codec:
    """Text -> the line of tokens that a dictionary reads, and back, by fairseq's encoders; without any text is one.

    Attributes:
        drop_unk: leave ``<unk>`` out of texts, as transformers does; fairseq writes it.
    """

    tokenizer: Any = None
    subwords: Any = None
    drop_unk: bool = False

    def encode(self, text: str) -> str:
        for part in (self.tokenizer, self.subwords):
            text = text if part is None else part.encode(text)
        return text

    def decode(self, line: str) -> str:
        for part in (self.subwords, self.tokenizer):
            line = line if part is None else part.decode(line)
        return line


class JoinedPieces(SentencepieceBPE):
    """fairseq's, which also joins pieces that are bytes (``<0xE2> <0x82> <0xAC>``) to the characters they stand for.

    A model with byte fallback writes them for characters that it has no piece for.
    """

    def decode(self, x: str) -> str:
        parts = []
        for bytewise, run in itertools.groupby(x.split(" "), self._is_byte):
            pieces = list(run)
            text = self.sp.decode_pieces(pieces) if bytewise else "".join(pieces)
            parts.append(text if bytewise else text.replace("\u2581", " "))
        return "".join(parts).strip()

    def _is_byte(self, piece: str) -> bool:
        return bool(piece.startswith("<0x") and self.sp.is_byte(self.sp.piece_to_id(piece)))


@contextmanager
def on_the_host() -> Iterator[None]:
    """New tensors are on the CPU where nothing else is said, whatever ``torch.set_default_device`` says outside."""
    default = torch.get_default_device() if hasattr(torch, "get_default_device") else None
    with nullcontext() if default is None or default.type == "cpu" else torch.device("cpu"):
        yield


def make_codec(
    saved: Mapping[str, Any],
    folders: Iterable[Path],
    languages: tuple[str, str],
    spm: str | Path | None = None,
    bpe: str | Path | None = None,
    tokenizer: str | None = None,
    drop_unk: bool | None = None,
) -> Codec:
    """The codec that the caller asks for, part by part, else that of the checkpoint.

    Args:
        saved: the configuration in the checkpoint.
        folders: where the checkpoint's files are looked for when they are not where it says.
        languages: of source and target, which the Moses tokeniser asks for.
        spm: a sentencepiece model. bpe: codes of subword-nmt. tokenizer: name of one of fairseq's.
        drop_unk: as of :class:`Codec`.
    """
    if drop_unk not in (None, True, False):
        raise ValueError(f"drop_unk={drop_unk!r}: it must be True or False")
    if spm and bpe:
        raise ValueError("spm and bpe are two ways to cut words into pieces: give one of them")
    folders = list(folders)
    parts = _tokenizer(saved, folders, languages, tokenizer), _subwords(saved, folders, spm, bpe)
    return Codec(*parts, bool(drop_unk))


def _tokenizer(
    saved: Mapping[str, Any], folders: list[Path], languages: tuple[str, str], name: str | None
) -> Any:
    if name is None:
        return encoders.build_tokenizer(_found(saved.get("tokenizer"), folders))
    known = sorted(encoders.TOKENIZER_REGISTRY)
    if name not in known:
        raise ValueError(f"tokenizer={name!r}: fairseq has {', '.join(known)}")
    source, target = languages
    settings = {"moses_no_dash_splits": False, "moses_no_escape": False}
    return encoders.build_tokenizer(
        Namespace(tokenizer=name, source_lang=source, target_lang=target, **settings)
    )


def _subwords(
    saved: Mapping[str, Any], folders: list[Path], spm: str | Path | None, bpe: str | Path | None
) -> Any:
    for option, path in (("spm", spm), ("bpe", bpe)):
        if path and not Path(path).is_file():
            raise FileNotFoundError(f"{option}={str(path)!r}: there is no such file")
    if spm:
        settings = SentencepieceConfig(sentencepiece_model=str(spm))
        return with_whole_tokens(JoinedPieces(settings), settings)
    if bpe:
        return SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=str(bpe)))
    settings = _found(saved.get("bpe"), folders)
    built = encoders.build_bpe(settings)
    if type(built) is SentencepieceBPE:
        built.__class__ = JoinedPieces
    return with_whole_tokens(built, settings)


def _found(settings: Any, folders: list[Path]) -> Any:
    """A copy of a tokeniser's settings, with files that have moved taken from ``folders``."""
    if settings is None:
        return None
    plain: Any = settings
    if isinstance(settings, DictConfig):
        plain = OmegaConf.to_container(settings, resolve=True)
    plain = dict(plain if isinstance(plain, Mapping) else vars(plain))
    for name, value in plain.items():
        if isinstance(value, str) and name.endswith(FILE_SETTINGS) and not Path(value).is_file():
            plain[name] = _moved(name, Path(value), folders)
    return OmegaConf.create(plain) if isinstance(settings, Mapping) else Namespace(**plain)


def _moved(name: str, path: Path, folders: list[Path]) -> str:
    for folder in folders:
        if (folder / path.name).is_file():
            return str(folder / path.name)
    raise FileNotFoundError(
        f"the checkpoint's tokenisation wants {name} {path}, which is neither there nor beside the checkpoint or the "
        "data: name the file with spm or bpe"
    )


def refuse_other_than_text(sentence: object, number: int, name: str = "sentence") -> None:
    """Raises ``TypeError`` for what is no string, ``ValueError`` for one that is no Unicode text."""
    if not isinstance(sentence, str):
        hint = ": decode it first" if isinstance(sentence, bytes) else ""
        raise TypeError(
            f"{name} {number} is {sentence!r:.40} of type {type(sentence).__name__}, not a string{hint}"
        )
    try:
        sentence.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} {number} is no Unicode text: character {error.start} is half a surrogate pair"
        ) from None
