"""Added and special tokens in a text: converted models read the ids that transformers reads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_aggdec.api.loading import from_pretrained
from fairseq_aggdec.convert.checkpoint import convert
from fairseq_aggdec.convert.folder import read
from fairseq_aggdec.convert.vocabulary import sides
from fairseq_aggdec.data.whole_tokens import FILE, WholeToken, WholeTokens, with_whole_tokens
from tests import hugging_face_folders as folders

PLACES = (
    *("{t}", "{t} the cat", "the cat {t}", "the {t} cat", "the{t} cat", "the {t}cat", "the{t}cat"),
    *(
        "{t}the cat",
        "the cat{t}",
        "the {t} {t} cat",
        "the {t}{t} cat",
        "  {t}  cat",
        "the  {t}  cat",
    ),
    *("the {t}, cat", "{t} {o}", "{o}{t} cat", "the {t} cat {o} dog {t}", "THE {t} <unknown> cat"),
    *("the {t}", "la {t}\tmaison"),
)
# What users add: plain, words of their own, blanks swallowed, one inside another, with a blank.
ADDED: dict[str, dict[str, bool]] = {
    "<new>": {},
    "term": {"single_word": True},
    "ab": {},
    "abc": {},
    "two words": {},
    "[left]": {"lstrip": True},
    "[right]": {"rstrip": True},
    "été": {},
}
SPECIAL = "<sep>"


def with_added(kind: str, folder: Path) -> Any:
    """A tokenizer to which tokens were added."""
    made = PLAIN(kind, folder)
    if kind == "m2m_100":  # to which none can be added, see below
        return made
    from transformers import AddedToken

    tokens = [AddedToken(text, normalized=False, **how) for text, how in ADDED.items()]
    made.add_tokens(tokens)
    made.add_tokens([AddedToken(SPECIAL, special=True)], special_tokens=True)
    return made


PLAIN = folders.tokenizer


@pytest.fixture(scope="module", params=folders.KINDS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, torch.Tensor]:
    """The tokenizer of transformers, the converted model, and the rows of its source symbols."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "first").mkdir()
    made = with_added(request.param, folder / "first")
    # M2M100 has rows of languages behind its tokens, and a model of two vocabularies has two sizes.
    count = max(len(made), *made.added_tokens_decoder) + {"m2m_100": 108}.get(request.param, 3)
    sizes = {"vocab_size": count}
    if request.param == "marian_two":
        sizes["decoder_vocab_size"] = count
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folders, "tokenizer", with_added)
        folders.make(request.param, folder / "hf", **sizes)
    pair = folders.PAIRS.get(request.param, (None, None))
    convert(folder / "hf", folder / "out", *pair)
    loaded = from_pretrained(folder / "out" / "model.pt", folder / "out", device="cpu")
    kept = read(folder / "hf")
    return kept.tokenizer, loaded, torch.tensor(sides(kept)[0].rows)


def texts(tokenizer: Any) -> list[str]:
    """Every token of the tokenizer and every added one in each place; ``{o}`` is another one."""
    special = [token for token in tokenizer.all_special_tokens if token not in ADDED]
    tokens = [*ADDED, *special[:8], SPECIAL]
    return [
        place.format(t=token, o=tokens[(number + 3) % len(tokens)])
        for number, token in enumerate(tokens)
        for place in PLACES
    ]


def test_ids_are_those_of_transformers(both: tuple[Any, Any, torch.Tensor]) -> None:
    """In Python, and by the encoder that fairseq's commands build."""
    tokenizer, loaded, rows = both
    lines, words = texts(tokenizer), loaded.task.source_dictionary
    saved = torch.load(loaded.made_by.args[0], weights_only=True)["cfg"]["bpe"]
    of_commands = loaded.task.build_bpe(OmegaConf.create(saved))
    assert len(lines) >= 200
    for line in lines:
        symbols = loaded.codec.encode(line)
        found = words.encode_line(symbols, add_if_not_exist=False).long()[:-1]
        expected = tokenizer(line, add_special_tokens=False)["input_ids"]
        assert rows[found].tolist() == expected, line
        assert of_commands.encode(line) == symbols


def test_an_added_token_is_written_and_read(both: tuple[Any, Any, torch.Tensor]) -> None:
    tokenizer, loaded, rows = both
    token = "<new>" if "<new>" in tokenizer.added_tokens_encoder else "</s>"
    number = rows.tolist().index(tokenizer.convert_tokens_to_ids(token))
    symbol = loaded.task.source_dictionary[number]
    assert loaded.codec.encode(token) == symbol
    assert loaded.codec.decode(symbol).strip() == token


def test_a_token_with_the_id_of_a_language_is_refused(tmp_path: Path) -> None:
    """transformers counts M2M100's languages to no vocabulary, and gives their ids away."""
    pytest.importorskip("transformers")
    folders.make("m2m_100", tmp_path / "hf")
    kept = read(tmp_path / "hf").tokenizer
    kept.add_tokens(["<new>"])
    assert kept.convert_tokens_to_ids("<new>") in kept.lang_token_to_id.values()
    kept.save_pretrained(tmp_path / "hf")
    with pytest.raises(ValueError, match="its tokens '__af__' and '<new>' have one row"):
        convert(tmp_path / "hf", tmp_path / "out", "en", "fr")


class Letters:
    """An encoder that makes a symbol of each letter."""

    def encode(self, x: str) -> str:
        return " ".join(x.replace(" ", ""))

    def decode(self, x: str) -> str:
        return x


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<x>b", "a X b"),
        ("<x><xy>", "X XY"),
        ("a one b", "a ONE b"),
        ("aone b", "a o n e b"),
        ("oneb", "o n e b"),
        (">>fra<< a", ">>fra<< a"),
        ("<x>>>fra<<a", "X >>fra<< a"),
        ("", ""),
    ],
)
def test_tokens_between_pieces(text: str, expected: str) -> None:
    tokens = [WholeToken("<x>", "X"), WholeToken("<xy>", "XY")]
    tokens.append(WholeToken("one", "ONE", single_word=True))
    assert WholeTokens(Letters(), tokens, codes=True).encode(text) == expected
    assert WholeTokens(Letters(), []).encode("a<x>") == "a < x >"


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"tokens": [1], "codes": 1}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    settings = Namespace(sentencepiece_model=str(tmp_path / "x.model"))
    with pytest.raises(ValueError, match=f"{FILE} is damaged"):
        with_whole_tokens(Letters(), settings)
