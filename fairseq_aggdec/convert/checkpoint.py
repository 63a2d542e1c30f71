"""The files of a converted model: ``model.pt``, with the options of model and task, dictionaries, subword model."""

import argparse
import difflib
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_aggdec.convert import folder as folders
from fairseq_aggdec.convert.folder import Folder
from fairseq_aggdec.convert.vocabulary import Vocabulary, languages, save_pieces, sides
from fairseq_aggdec.convert.weights import parameters, shared
from fairseq_aggdec.models.swish_transformer import NAME as SWISH
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.loading import NEW_ENTRIES, checked_model

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_accurate", "tanh": "tanh"}
SWISHES = ("silu", "swish")
LANGUAGE = re.compile(r"\w[\w.+-]*")
NORMS_BEFORE = ("m2m_100", "mbart")
MULTILINGUAL = "translation_multi_simple_epoch"
HF_MAX_LENGTH = 20  # what transformers assumes where nothing is said


@dataclass(frozen=True)
class Converted:
    """Records what was written, as options of fairseq's commands: names with underscores.

    Attributes:
        output: the folder.
        arch: fairseq's name of the model.
        task: its name and options.
        pieces: the subword model.
        generation: beam, lengths and penalties that the model's authors chose.
        suffix: what a text needs behind its pieces where ``--bpe`` alone does not prepare it; else None.
        notes: sentences about what differs from transformers or needs care.
    """

    output: Path
    arch: str
    task: dict[str, Any]
    pieces: dict[str, Any]
    generation: dict[str, Any]
    suffix: str | None
    notes: list[str]


def convert(path: Path, output: Path, source: str | None, target: str | None) -> Converted:
    """Writes checkpoint, dictionaries and subword model.

    Args:
        path: a folder of Hugging Face transformers.
        output: a folder that is not there yet.
        source, target: languages, by the model's own codes where it has several.

    Raises:
        FileNotFoundError, ValueError: there is no model in the folder that fairseq can hold, or not these languages.
    """
    folder = _checked(folders.read(path))
    pair = _pair(folder, source, target)
    generation = _generation(folder)
    tensors = folders.weights(path)
    folders.check_sizes(folder, tensors)
    both = sides(folder)
    model = parameters(folder, tensors, *both)
    output = output.resolve()
    task = _task(folder, output, *pair)
    options = _model_options(folder) | shared(model)
    with new_folder(output) as beside:
        _save_dictionaries(beside, task, both, languages(folder))
        # Options name the files by the place where they will be.
        pieces = {
            name: value.replace(str(beside), str(output))
            for name, value in save_pieces(folder, beside, both[0]).items()
        }
        _save(beside, model, options, _stored_task(task, output), pieces, generation)
    arch = options["_name"]
    notes = _notes(folder, task, arch)
    return Converted(output, arch, task, pieces, generation, _suffix(folder), notes)


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A folder to write into, which has its name once it is whole; what went wrong leaves nothing behind.

    Raises:
        FileExistsError: the place is taken by a folder that is not empty.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as beside:
        made = Path(beside, "made")
        made.mkdir()
        yield made
        made.rename(place)


def _checked(folder: Folder) -> Folder:
    name = folder.config.activation_function
    if not isinstance(name, str) or (name not in ACTIVATIONS and name not in SWISHES):
        known = ", ".join([*ACTIVATIONS, *SWISHES])
        raise ValueError(
            f"{folder.path}: activation {name!r:.40} cannot be converted, only {known}"
        )
    if getattr(folder.tokenizer, "legacy_behaviour", False):
        raise ValueError(
            f"{folder.path}: its tokenizer puts the language behind the source (legacy_behaviour), and no task of "
            "fairseq does so for this model; set it to false in tokenizer_config.json"
        )
    return folder


def _pair(folder: Folder, source: str | None, target: str | None) -> tuple[str, str]:
    """The names of the two languages, which name the dictionaries too."""
    codes = languages(folder)
    if folder.kind == "bart":
        source, target = source or "source", target or "target"
    elif folder.kind == "marian":
        source = source or folder.tokenizer.source_lang
        target = target or folder.tokenizer.target_lang
    named = {"--source-lang": source, "--target-lang": target}
    for option, code in named.items():
        if code is not None and codes and code not in codes:
            near = difflib.get_close_matches(code, codes, 3, 0.4) or codes[:3]
            raise ValueError(
                f"{option} {code:.40}: the model knows no such language, only {len(codes)} others, such as "
                f"{', '.join(near)}"
            )
    if source is None or target is None:
        choice = f" of {' '.join(codes)}" if codes else ""
        raise ValueError(f"{folder.path}: name --source-lang and --target-lang{choice}")
    for code in (source, target):
        if not LANGUAGE.fullmatch(code):  # it names a file, and a downloaded folder may have any
            raise ValueError(f"{folder.path}: {code!r:.40} is no name of a language")
    if source == target:
        raise ValueError(f"--source-lang and --target-lang are both {source}: fairseq needs two")
    return source, target


def _task(folder: Folder, output: Path, source: str, target: str) -> dict[str, Any]:
    """The task that prepares sources and starts targets as the model expects, with its options."""
    pair = {"source_lang": source, "target_lang": target}
    if folder.kind in ("bart", "marian"):
        return {"_name": "translation"} | pair
    return {
        "_name": MULTILINGUAL,
        **pair,
        "lang_pairs": f"{source}-{target}",
        "lang_dict": str(output / "languages.txt"),
        "fixed_dictionary": str(output / "dict.txt"),
        "lang_tok_style": "mbart" if folder.kind == "mbart" else "multilingual",
        "encoder_langtok": "src",
        "decoder_langtok": True,
    } | ({"lang_tok_replacing_bos_eos": True} if _is_first_mbart(folder) else {})


def _is_first_mbart(folder: Folder) -> bool:
    """mBART-25 has the language behind the source, and starts with it where the others start with </s>."""
    return type(folder.tokenizer).__name__ == "MBartTokenizer"


def _save_dictionaries(
    output: Path, task: Mapping[str, Any], both: tuple[Vocabulary, Vocabulary], codes: list[str]
) -> None:
    if task["_name"] == MULTILINGUAL:
        both[0].save(output / "dict.txt")
        (output / "languages.txt").write_text("\n".join(codes) + "\n", encoding="utf-8")
        return
    for side, name in zip(both, ("source_lang", "target_lang"), strict=True):
        side.save(output / f"dict.{task[name]}.txt")


def _model_options(folder: Folder) -> dict[str, Any]:
    config, kind = folder.config, folder.kind
    swish = config.activation_function in SWISHES
    options = {
        "_name": SWISH if swish else "transformer",
        "activation_fn": "relu" if swish else ACTIVATIONS[config.activation_function],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "no_scale_embedding": not config.scale_embedding,
        "layernorm_embedding": kind in ("bart", "mbart"),
        "max_source_positions": config.max_position_embeddings,
        "max_target_positions": config.max_position_embeddings,
    }
    for side in ("encoder", "decoder"):
        options |= {
            f"{side}_embed_dim": config.d_model,
            f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim"),
            f"{side}_layers": getattr(config, f"{side}_layers"),
            f"{side}_attention_heads": getattr(config, f"{side}_attention_heads"),
            f"{side}_normalize_before": kind in NORMS_BEFORE,
            f"{side}_learned_pos": kind != "m2m_100",
        }
    return options


def _generation(folder: Folder) -> dict[str, Any]:
    """The search that the model's authors chose. transformers counts start and end of a text, fairseq neither."""
    config = folder.generation
    options: dict[str, Any] = {"beam": _number(folder, "num_beams", 1, 1)}
    longest = _number(folder, "max_length", HF_MAX_LENGTH, 2)
    if longest != HF_MAX_LENGTH:
        options["max_len_b"] = longest - 2
    if (shortest := _number(folder, "min_length", 0, 0)) > 2:
        options["min_len"] = shortest - 1
    if shortest > longest != HF_MAX_LENGTH:
        raise ValueError(
            f"{folder.path}: its generation settings have min_length {shortest} above max_length {longest}"
        )
    penalty = config.length_penalty
    if penalty not in (None, 1.0):
        if type(penalty) not in (int, float) or not math.isfinite(penalty):
            raise _wrong(folder, "length_penalty", "a finite number")
        options["lenpen"] = penalty
    if size := _number(folder, "no_repeat_ngram_size", 0, 0):
        options["no_repeat_ngram_size"] = size
    return options


def _number(folder: Folder, name: str, default: int, least: int) -> int:
    """A whole number of the generation settings.

    Raises:
        ValueError: it is none, or less than ``least``.
    """
    value = getattr(folder.generation, name)
    if value is None or (value == 0 and type(value) is int):
        value = default
    if type(value) is not int or value < least:
        raise _wrong(folder, name, f"a whole number of at least {least}")
    return value


def _wrong(folder: Folder, name: str, wanted: str) -> ValueError:
    value = getattr(folder.generation, name)
    return ValueError(
        f"{folder.path}: its generation settings have {name} {value!r:.40}, which must be {wanted}: edit "
        "generation_config.json, or config.json where there is none"
    )


def _stored_task(task: dict[str, Any], output: Path) -> dict[str, Any]:
    """All options of a task, as fairseq's parser would set them: the older tasks fill in nothing."""
    parser = argparse.ArgumentParser()
    TASK_REGISTRY[task["_name"]].add_args(parser)
    defaults = vars(parser.parse_args([str(output)]))
    named = (
        {}
        if task["_name"] == "translation"
        else {"task": task["_name"], "seed": 1, "dataset_impl": None}
    )
    return defaults | named | task


def _save(
    output: Path,
    model: dict[str, Tensor],
    options: dict[str, Any],
    task: dict[str, Any],
    pieces: dict[str, Any],
    generation: dict[str, Any],
) -> None:
    """Writes ``model.pt``, which holds data only, so that PyTorch's weights-only loading takes it; ``task``: whole."""
    cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    cfg |= {"model": options, "task": task, "bpe": pieces}
    cfg["generation"] |= generation
    state = {"args": None, "cfg": cfg, "model": model, "last_optimizer_state": None}
    state["generation"] = generation  # what from_pretrained and the service decode with
    save(state | NEW_ENTRIES, output / "model.pt")


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint beside its name, checks it, and renames it: who looks finds all of it or nothing."""
    partial = path.with_name(f"{path.name}.partial")
    progress.save(state, partial)
    checked_model(str(partial))
    partial.replace(path)


def _suffix(folder: Folder) -> str | None:
    """Finds what a text needs behind its pieces, where fairseq's ``--bpe`` alone does not prepare it; else None."""
    codes = any(token.startswith(">>") for token in getattr(folder.tokenizer, "encoder", ()))
    return "</s>" if _is_first_mbart(folder) else "" if codes else None


def _notes(folder: Folder, task: Mapping[str, Any], arch: str) -> list[str]:
    notes = []
    if arch == SWISH:
        notes.append(
            "Stock fairseq has no layer with this model's activation (swish). This package registers one, so that "
            "fairseq's own commands read it with --user-dir."
        )
    if folder.kind == "bart":
        notes.append(
            "BART was trained with <s> before source and target. fairseq's hub adds them, the -interactive commands "
            "do not."
        )
    if _suffix(folder) == "":
        notes.append("Put the code of the target language before each sentence: `>>fra<< Hello`.")
    if task["_name"] == MULTILINGUAL:
        notes.append(
            "For other languages change -s, -t and --lang-pairs; languages.txt lists them."
        )
    return notes
