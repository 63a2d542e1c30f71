"""Subwords of models that others trained: GPT-2's numbers, ``@@``, or a sentencepiece model.

    python -m scripts.recipes.subwords gpt2:FOLDER < TEXT > PIECES

FOLDER has GPT-2's encoder.json and vocab.bpe, which BART has, too. With ``@@`` the text is in pieces already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GPT2 = "gpt2:"

Lines = Callable[[str], str]


def _gpt2(subwords: str) -> Any:
    """fairseq's encoder of GPT-2, from the files of a folder.

    Raises:
        FileNotFoundError: one of the two files is missing.
    """
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    folder = Path(subwords.removeprefix(GPT2))
    for name in ("encoder.json", "vocab.bpe"):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder} has no {name}, one of GPT-2's two files")
    return get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))


def encoder(subwords: str) -> Lines:
    """The function from a line of text to its pieces."""
    if not subwords.startswith(GPT2):
        return str
    gpt2 = _gpt2(subwords)
    return lambda line: " ".join(map(str, gpt2.encode(line)))


def decoder(subwords: str) -> Lines:
    """The function from pieces to tokens or text."""
    if subwords == "@@":
        return lambda line: f"{line} ".replace("@@ ", "").strip()
    if subwords.startswith(GPT2):
        gpt2 = _gpt2(subwords)
        # What is no number is <unk> or a filler of the dictionary.
        return lambda line: str(gpt2.decode([int(p) for p in line.split() if p.isdigit()]))
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=subwords)
    return lambda line: str(model.decode(line.split()))


def main(subwords: str) -> None:
    try:
        encode = encoder(subwords)
    except OSError as error:
        sys.exit(f"error: {error}")
    for line in sys.stdin:
        print(encode(line.rstrip("\n")))


if __name__ == "__main__":
    main(*sys.argv[1:])
