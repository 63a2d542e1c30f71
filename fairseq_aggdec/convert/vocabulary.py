"""The dictionary of a converted model: fairseq's four special symbols first, then the other rows in their order."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_aggdec.convert.folder import Folder
from fairseq_aggdec.data import whole_tokens as whole_tokens_file
from fairseq_aggdec.data.whole_tokens import WholeToken

BYTES = bytes_to_unicode()  # how GPT-2's pieces spell bytes
ABSENT = -1  # in place of a row: a symbol that the model does not have
LANGUAGE_SYMBOLS = {"m2m_100": "__{}__", "mbart": "[{}]"}  # fairseq's two styles


@dataclass(frozen=True)
class Vocabulary:
    """One side's types.

    Attributes:
        symbols: of fairseq's dictionary, by index.
        rows: of each symbol in the tables of the Hugging Face model, or :data:`ABSENT`.
    """

    symbols: list[str]
    rows: list[int]

    def save(self, path: Path) -> None:
        """Writes ``dict.*.txt``."""
        dictionary = Dictionary()
        for symbol in self.symbols[dictionary.nspecial :]:
            dictionary.add_symbol(symbol)
        dictionary.save(str(path))


def languages(folder: Folder) -> list[str]:
    """The codes of a multilingual model, in the order of their rows; none for other models."""
    if folder.kind not in ("m2m_100", "mbart"):
        return []
    tokenizer = folder.tokenizer
    rows = getattr(tokenizer, "lang_code_to_id", None)  # NLLB's tokenizer has none
    if rows is None:
        codes = tokenizer.additional_special_tokens
        rows = dict(zip(codes, tokenizer.convert_tokens_to_ids(codes), strict=True))
    return [code for code, row in rows.items() if row < folder.config.vocab_size]


def sides(folder: Folder) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target, one and the same where the model shares its embeddings."""
    config, tokenizer = folder.config, folder.tokenizer
    source = vocabulary(folder, _tokens(folder), config.vocab_size)
    if not getattr(tokenizer, "separate_vocabs", False):
        return source, source
    tokens = _by_row(folder, tokenizer.target_encoder)
    return source, vocabulary(folder, tokens, config.decoder_vocab_size)


def _tokens(folder: Folder) -> dict[int, str]:
    """Row -> token of the source side, for rows that a token is mapped to."""
    tokenizer = folder.tokenizer
    if folder.kind == "marian":  # its method knows the target's tokens
        return _by_row(folder, {**_added(folder), **tokenizer.encoder})
    if isinstance(encoder := getattr(tokenizer, "encoder", None), dict):
        _by_row(folder, encoder)
    # transformers gives tokens that are added to M2M100's the ids of its languages.
    _by_row(folder, getattr(tokenizer, "lang_token_to_id", {}) | _added(folder))
    tokens = {}
    for row in range(folder.config.vocab_size):
        try:
            token = tokenizer.convert_ids_to_tokens(row)
        except IndexError:  # behind the last piece of the sentencepiece model
            continue
        if token is not None and tokenizer.convert_tokens_to_ids(token) == row:
            tokens[row] = token
    return tokens


def _added(folder: Folder) -> dict[str, int]:
    """Tokens that a text may hold as they are -> their rows; those without a row in the tables are left out."""
    added = folder.tokenizer.added_tokens_decoder.items()
    return {token.content: row for row, token in added if row < folder.config.vocab_size}


def _by_row(folder: Folder, rows: Mapping[str, int]) -> dict[int, str]:
    """Row -> token.

    Raises:
        ValueError: two tokens have one row, and fairseq would know one of them only.
    """
    tokens: dict[int, str] = {}
    for token, row in rows.items():
        if tokens.setdefault(row, token) != token:
            raise ValueError(
                f"{folder.path}: its tokens {tokens[row]!r} and {token!r} have one row, {row}"
            )
    return tokens


def vocabulary(folder: Folder, tokens: Mapping[int, str], count: int) -> Vocabulary:
    """The vocabulary of a table of `count` rows.

    Raises:
        ValueError: a token has no row, or does not fit into fairseq's dictionary, or the model has no symbol that
            fairseq cannot do without.
    """
    if tokens and max(tokens) >= count:
        raise ValueError(
            f"{folder.path}: its tokenizer has {max(tokens) + 1} types and its model {count}"
        )
    rows = {token: row for row, token in tokens.items()}
    tokenizer = folder.tokenizer
    names = (tokenizer.bos_token or "<s>", tokenizer.pad_token, tokenizer.eos_token)
    special = [rows.get(token, ABSENT) for token in (*names, tokenizer.unk_token)]
    if ABSENT in special[1:]:
        raise ValueError(f"{folder.path}: its vocabulary has no padding, end or unknown symbol")
    others = [row for row in range(count) if row not in special]
    name = _naming(folder)
    symbols = [*Dictionary().symbols, *(name(row, tokens.get(row)) for row in others)]
    if len({*symbols}) < len(symbols) or any("\n" in one or "\r" in one for one in symbols):
        raise ValueError(f"{folder.path}: a type holds a line break, or two have one name")
    return Vocabulary(symbols, [*special, *others])


def _naming(folder: Folder) -> Callable[[int, str | None], str]:
    """Returns what fairseq calls a row: its token, but for codes of languages, pieces of BART and rows without a
    token."""
    style = LANGUAGE_SYMBOLS.get(folder.kind, "{}")
    named = hasattr(folder.tokenizer, "lang_token_to_id")  # M2M100 has fairseq's symbols
    codes = set() if named else {*languages(folder)}
    added = _added(folder)

    def name(row: int, token: str | None) -> str:
        if folder.kind == "bart" and token != "<mask>":
            return str(row)  # fairseq's GPT-2 pieces are numbers
        if token is None:
            return f"madeupword{row:06d}"
        if token in added:
            token = "▁".join(token.split()) or f"madeupword{row:06d}"  # a symbol has no blanks
        return style.format(token) if token in codes else token

    return name


def whole_tokens(folder: Folder, side: Vocabulary) -> list[WholeToken]:
    """The special and added tokens of the tokenizer, with their symbols."""
    symbols = dict(zip(side.rows, side.symbols, strict=True))
    return [
        WholeToken(one.content, symbols[row], one.lstrip, one.rstrip, one.single_word)
        for row, one in folder.tokenizer.added_tokens_decoder.items()
        if row in symbols
    ]


def save_pieces(folder: Folder, output: Path, side: Vocabulary) -> dict[str, Any]:
    """Copies the subword model under the names that fairseq's hub looks for, and writes the tokens that stay whole.

    Returns:
        the ``bpe`` section of a checkpoint.
    """
    tokenizer = folder.tokenizer
    whole_tokens_file.save(output, whole_tokens(folder, side), folder.kind == "marian")
    if folder.kind == "bart":
        encoder, merges = output / "encoder.json", output / "vocab.bpe"
        spelt = {
            "".join(map(BYTES.__getitem__, token.encode())): row
            for token, row in _added(folder).items()
        }
        encoder.write_text(json.dumps(spelt | tokenizer.encoder), encoding="utf-8")
        shutil.copyfile(folder.path / "merges.txt", merges)
        return {"_name": "gpt2", "gpt2_encoder_json": str(encoder), "gpt2_vocab_bpe": str(merges)}
    model = output / "sentencepiece.bpe.model"
    if folder.kind == "marian":
        source, target = tokenizer.spm_files
        shutil.copyfile(target, output / "target.spm")
    else:
        source = getattr(tokenizer, "spm_file", tokenizer.vocab_file)
    shutil.copyfile(source, model)
    return {"_name": "sentencepiece", "sentencepiece_model": str(model)}
