"""Tiny random models of Hugging Face transformers with tokenizers trained on a few lines, as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch

LINES = [
    "the cat sat on the mat and the dog ran to the house",
    "a small house in the big city near the sea",
    "le chat est sur la table et le chien dort dans la maison",
    "une petite maison dans la grande ville au bord de la mer",
    "we saw nine red cars, two green ones and a blue bike",
    "what is the time? it is half past three, he said",
]
KINDS = ("marian", "marian_two", "m2m_100", "nllb", "bart", "mbart", "mbart50")
PAIRS = {
    "m2m_100": ("en", "fr"),
    "nllb": ("eng_Latn", "fra_Latn"),
    "mbart": ("en_XX", "ro_RO"),
    "mbart50": ("en_XX", "fr_XX"),
}
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
}


def save_pieces(path: Path, size: int = 70) -> list[str]:
    """Writes a sentencepiece model; its pieces, <unk>, <s> and </s> first."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_writer=file,
            vocab_size=size,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    found = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [found.id_to_piece(row) for row in range(found.get_piece_size())]


def save_vocabulary(path: Path, tokens: list[str]) -> Path:
    path.write_text(json.dumps({token: row for row, token in enumerate(tokens)}))
    return path


def marian_tokenizer(folder: Path, separate: bool) -> Any:
    from transformers import MarianTokenizer

    source, target = (
        save_pieces(folder / f"{side}.spm", size)[3:]
        for side, size in (("source", 70), ("target", 70 if separate else 60))
    )
    # transformers needs two vocabularies of one size.
    both = [source, target[::-1]] if separate else [list(dict.fromkeys(source + target)), []]
    files = [
        save_vocabulary(folder / name, ["</s>", "<unk>", *tokens, "<pad>"])
        for name, tokens in zip(("vocab.json", "target_vocab.json"), both, strict=True)
    ]
    return MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        files[0],
        files[1] if separate else None,
        source_lang="en",
        target_lang="fr",
        separate_vocabs=separate,
    )


def tokenizer(kind: str, folder: Path) -> Any:
    """A tokenizer whose files are in a folder."""
    import transformers

    if kind.startswith("marian"):
        return marian_tokenizer(folder, kind == "marian_two")
    if kind == "bart":
        from tokenizers import ByteLevelBPETokenizer

        made = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        made.train_from_iterator(LINES, vocab_size=300, special_tokens=special)
        made.save_model(str(folder))
        return transformers.BartTokenizer(folder / "vocab.json", folder / "merges.txt")
    model = folder / "sentencepiece.bpe.model"
    pieces = save_pieces(model)
    source, target = PAIRS[kind]
    pair = {"src_lang": source, "tgt_lang": target}
    if kind == "m2m_100":
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]]
        vocabulary = save_vocabulary(folder / "vocab.json", tokens)
        return transformers.M2M100Tokenizer(vocabulary, model, **pair)
    name = {"nllb": "NllbTokenizer", "mbart": "MBartTokenizer", "mbart50": "MBart50Tokenizer"}[kind]
    return getattr(transformers, name)(model, **pair)


def options(kind: str, made: Any) -> dict[str, Any]:
    """Of the model's configuration, beside the sizes."""
    if kind.startswith("marian"):
        pad = made.pad_token_id
        found = {
            "vocab_size": len(made.encoder),
            "pad_token_id": pad,
            "eos_token_id": 0,
            "forced_eos_token_id": None,
            "decoder_start_token_id": pad,
            "activation_function": "swish",
            "scale_embedding": True,
        }
        if kind == "marian_two":
            pads = {"pad_token_id": pad, "decoder_start_token_id": made.target_encoder["<pad>"]}
            found |= pads | {
                "decoder_vocab_size": len(made.target_encoder),
                "share_encoder_decoder_embeddings": False,
            }
        return found
    # Published models have rows without a token at the end, M2M100 behind its languages.
    spare = {"bart": 0, "m2m_100": 108}.get(kind, 3)
    found = {"vocab_size": len(made) + spare, "forced_eos_token_id": None, "scale_embedding": True}
    if kind == "mbart":
        return found | {"decoder_start_token_id": made.convert_tokens_to_ids("ro_RO")}
    if kind == "bart":
        return found | {"scale_embedding": False, "decoder_start_token_id": 2}
    return found | {"decoder_start_token_id": 2}


@torch.no_grad()
def randomise(model: Any) -> None:
    """Weights that make every part of the model count, biases and norms too, as ``random_models.make_model`` does."""
    width = model.config.d_model
    embedding = 0.6 / (width**0.5 if model.config.scale_embedding else 1)
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if "embed_positions" in name and not parameter.requires_grad:
            continue
        spread = 2 / parameter.size(-1) ** 0.5 if parameter.dim() > 1 else 0.2
        if "shared" in name or "embed_tokens" in name:
            spread = embedding
        parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, spread)
    decoder = model.model.decoder
    last = getattr(decoder, "layer_norm", None) or decoder.layers[-1].final_layer_norm
    # Away from the embeddings, or the last token is repeated. Logits get a spread of 2.7.
    last.weight.normal_(0, 2.7 / (width**0.5 * embedding))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, model.config.eos_token_id] += 4


def make(kind: str, folder: Path, seed: int = 1, **other: Any) -> tuple[Any, Any]:
    """Writes a folder; its model in evaluation mode and its tokenizer."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer(kind, folder)
    family = {"marian_two": "marian", "nllb": "m2m_100", "mbart50": "mbart"}.get(kind, kind)
    names = {"marian": "Marian", "m2m_100": "M2M100", "bart": "Bart", "mbart": "MBart"}
    config = getattr(transformers, f"{names[family]}Config")(
        **(SIZES | options(kind, made) | other)
    )
    torch.manual_seed(seed)
    suffix = "MTModel" if family == "marian" else "ForConditionalGeneration"
    model = getattr(transformers, f"{names[family]}{suffix}")(config)
    randomise(model)
    model.generation_config.forced_bos_token_id = None
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return model.eval(), made
