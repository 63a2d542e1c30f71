"""``from_pretrained``: from checkpoints, dictionaries and options to a translator."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fairseq_aggdec.api.languages import first_pair, make_task, of_direction
from fairseq_aggdec.api.text import make_codec, on_the_host
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.kernels.mapped import read_once
from fairseq_aggdec.methods.options.reading import refuse_switch
from fairseq_aggdec.packed.folder import ModelFiles, open_model
from fairseq_aggdec.startup.installing import refuse_published
from fairseq_aggdec.stored.checkpoints import load_model
from fairseq_aggdec.tasks.decoding_options import NAMES
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecConfig

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Arguments of their own, not options.
DECODING = set(NAMES) - {"bf16", "decoding", "drafter_path"}
# Those of fairseq's generation options that mean something without its command line.
GENERATION = {
    "diverse_beam_groups",
    "diverse_beam_strength",
    "diversity_rate",
    "lenpen",
    "match_source_len",
    "max_len_a",
    "max_len_b",
    "min_len",
    "nbest",
    "no_early_stop",
    "no_repeat_ngram_size",
    "sampling",
    "sampling_topk",
    "sampling_topp",
    "temperature",
    "unkpen",
    "unnormalized",
}
# Arguments of from_pretrained itself, which a misspelt option may mean.
ARGUMENTS = ("path", "data", "decoding", "drafter_path", "beam", "device", "dtype")
LANGUAGES = {"source_lang", "target_lang"}
TEXT = {"bpe", "drop_unk", "post_process", "spm", "tokenizer"}
# What a checkpoint was trained with and must be decoded with.
OF_THE_CHECKPOINT = ("left_pad_source", "left_pad_target", "max_source_positions")


# What `aggdec convert` stores of the search that a model's authors chose; the beam is an argument.
OF_AUTHORS = ("lenpen", "max_len_b", "min_len", "no_repeat_ngram_size")


def _authors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options that a converted checkpoint brings along."""
    stored = state.get("generation")
    options = stored if isinstance(stored, dict) else {}
    return {name: options[name] for name in OF_AUTHORS if type(options.get(name)) in (int, float)}


@on_the_host()
def from_pretrained(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    data: str | os.PathLike[str] | None = None,
    decoding: str = "beam",
    drafter_path: str | os.PathLike[str] | None = None,
    beam: int = 5,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> Translator:
    """Loads a fairseq encoder-decoder checkpoint, stock or of this plugin, to decode from Python.

    Args:
        path: the checkpoint, or a folder of ``aggdec pack``; several, as a list or joined by ``:``, are an ensemble
            whose probabilities are averaged.
        data: folder with ``dict.SOURCE.txt`` and ``dict.TARGET.txt``, as ``fairseq-preprocess`` wrote them; None: the
            packed folder.
        decoding: the method, as ``--decoding`` names it: ``beam``, ``stock`` (fairseq's own generator), ``greedy``,
            ``iad``, ``gad``, ``nar``, ``blockwise``, ``interleaved``, ``lattice``.
        drafter_path: checkpoint of the drafter, for ``gad`` and ``nar``.
        beam: beam size of ``beam``, ``stock`` and ``interleaved``, 5 as on the command line; the others take it as 1.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; None: a GPU where there is one.
        dtype: ``fp32`` (default), ``fp16``, ``bf16`` or a ``torch.dtype``. A packed folder has its own.
        **options: the plugin's and fairseq's options of decoding with ``_`` for ``-``: ``max_len_b=200``,
            ``acceptance="top-k:2"``, ``draft_tokens="auto"``, ``nbest=5``, ...; ``source_lang`` and ``target_lang``,
            where neither the checkpoint nor the data tell; and for the text: ``spm`` (a sentencepiece model), ``bpe``
            (codes of subword-nmt), ``tokenizer`` (``moses``, ...), ``post_process`` (marks to remove from outputs, such
            as ``"@@ "``, where text comes in pieces already), ``drop_unk=True`` (leave ``<unk>`` out of outputs, as
            transformers does; fairseq writes it). Tokenisation that is not named is the checkpoint's; a
            checkpoint without any takes tokens separated by spaces.

    Returns:
        a translator, its weights packed.

    Raises:
        TypeError: an option that there is not; the message has the nearest names.
        ValueError: a value that there is not, or that the method or the model cannot honour, in one sentence.
        FileNotFoundError, CheckpointError: a file that is missing or does not fit; the message names it.

    >>> import fairseq_aggdec
    >>> folder = "checkpoints/ua_gec"
    >>> model = fairseq_aggdec.from_pretrained(
    ...     f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model", max_len_b=100
    ... )
    >>> model.translate(["Я знаю що ти тут ."])
    ['Я знаю , що ти тут .']
    >>> fairseq_aggdec.from_pretrained(f"{folder}/checkpoint.pt", folder, max_lenb=9)
    Traceback (most recent call last):
    ...
    TypeError: there is no option 'max_lenb': did you mean max_len_b, max_len_a, min_len?
    """
    arguments = path, data, decoding, drafter_path, beam, device, dtype
    made_by = functools.partial(from_pretrained, *arguments, **options)
    refuse_unknown(options)
    files = [open_model(one) for one in _paths(path)]
    paths = [one.checkpoint for one in files]
    data, dtype, options = _as_packed(files, data, dtype, options)
    if data is None:
        raise ValueError("data: name the folder with the dictionaries")
    states = [one.load() for one in files]
    saved = states[0].get("cfg") or {}
    options = _authors(states[0]) | options
    precision = _precision(dtype)
    cfg = make_config(paths, str(data), decoding, beam, saved, options)
    _set(cfg.task, "drafter_path", None if drafter_path is None else os.fspath(drafter_path))
    cfg.common.bf16 = precision is torch.bfloat16
    place = _device(device)
    task = make_task(cfg, dict(zip(paths, states, strict=True)), _trained(saved))
    task.summary_at_exit = True  # who calls from Python asks for the summary
    whole = [_load(one, state, task, cfg, place) for one, state in zip(paths, states, strict=True)]
    if precision is torch.float16:
        whole = [model.half() for model in whole]
    models = [of_direction(model, cfg.task.source_lang, cfg.task.target_lang) for model in whole]
    for model, one in zip(models, files, strict=True):
        one.attach(model)
    with read_once(*paths):
        generator = task.build_generator(models, cfg.generation)
    languages = cfg.task.source_lang, cfg.task.target_lang
    places = [Path(split_paths(str(data))[0]), *(Path(one).parent for one in paths)]
    named = {name: options.get(name) for name in ("spm", "bpe", "tokenizer", "drop_unk")}
    codec = make_codec(saved, places, languages, **named)
    for one in files:
        one.check()
    nbest, joined = int(cfg.generation.nbest), options.get("post_process")
    translator = Translator(task, models, generator, codec, nbest, joined, cfg.generation, whole)
    translator.made_by = made_by
    return translator


def _as_packed(
    files: Sequence[ModelFiles], data: Any, dtype: Any, options: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Data, precision and options where nothing else is said: those that the first folder was packed for."""
    first = next((one for one in files if one.folder is not None), None)
    if first is None:
        return data, dtype, options
    if first.kind == "int8":
        options = {"int8": "all"} | options
    if first.kind == "bf16" and dtype is None:
        dtype = "bf16"
    return first.folder if data is None else data, dtype, options


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` with the nearest names for the first option that there is not."""
    known = sorted(DECODING | GENERATION | LANGUAGES | TEXT)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *ARGUMENTS], 3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"there is no option {name!r}: {hint}")


def make_config(
    paths: Sequence[str],
    data: str,
    decoding: str,
    beam: int,
    saved: Mapping[str, Any],
    options: Mapping[str, Any],
) -> DictConfig:
    """fairseq's configuration, as its command line would make it; ``saved``: that in the checkpoint."""
    cfg = OmegaConf.structured(FairseqConfig)
    with open_dict(cfg):
        cfg.task = OmegaConf.structured(TranslationAggdecConfig)
    cfg.common_eval.path = os.pathsep.join(paths)
    cfg.task.data = data
    trained = _trained(saved)
    for name in OF_THE_CHECKPOINT:
        if trained.get(name) is not None:
            cfg.task[name] = trained[name]
    _set(cfg.task, "decoding", decoding)
    _set(cfg.generation, "beam", beam)
    for name, value in options.items():
        refuse_switch(name, value, f"{name}={value}")
        if name not in TEXT | LANGUAGES:
            _set(cfg.task if name in DECODING else cfg.generation, name, value)
    if not 1 <= cfg.generation.nbest <= max(1, cfg.generation.beam):
        raise ValueError(
            f"nbest={cfg.generation.nbest}: it must be 1 to beam, which is {cfg.generation.beam}"
        )
    cfg.task.source_lang, cfg.task.target_lang = _languages(data, trained, options)
    return cfg


def _trained(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the task that a checkpoint was trained with."""
    task = saved.get("task") or {}
    if isinstance(task, DictConfig):  # whose get() may refuse a name that it has not
        return {str(name): task[name] for name in task if name in task}
    return task if isinstance(task, Mapping) else vars(task)


def _languages(
    data: str, trained: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[str, str]:
    names, first = ("source_lang", "target_lang"), first_pair(trained)
    source, target = (
        options.get(name) or trained.get(name) or pair
        for name, pair in zip(names, first, strict=True)
    )
    if source is None or target is None:
        source, target = data_utils.infer_language_pair(split_paths(data)[0])
    if source is None or target is None:
        raise ValueError(
            f"neither the checkpoint nor {data} tells the languages: name source_lang and target_lang"
        )
    return source, target


def _set(section: DictConfig, name: str, value: Any) -> None:
    try:
        section[name] = value.item() if isinstance(value, np.generic) else value
    except OmegaConfBaseException as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{name}={value!r}: {reason}") from None


def _paths(path: Any) -> list[str]:
    if isinstance(path, str | os.PathLike):
        paths = list(split_paths(os.fspath(path)))
    else:
        paths = [os.fspath(one) for one in path]
    if not paths:
        raise ValueError("path: name at least one checkpoint")
    for one in paths:
        refuse_published(one)
    return paths


def _precision(dtype: str | torch.dtype | None) -> torch.dtype:
    precision = DTYPES.get(dtype or "fp32") if not isinstance(dtype, torch.dtype) else dtype
    if precision not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r}: there are {', '.join(DTYPES)}")
    assert precision is not None
    return precision


def _device(device: str | torch.device | None) -> torch.device:
    """The device that a caller names, None: a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f'device={device!r}: {reason}; give "cpu", "cuda" or "cuda:1"') from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ValueError(f'device={device!r}: PyTorch finds {gpus} GPUs here; device="cpu" works')
    return chosen


def _load(
    path: str, state: dict[str, Any], task: Any, cfg: DictConfig, device: torch.device
) -> Any:
    model = load_model(path, state, task).to(device).eval()
    model.prepare_for_inference_(cfg)
    return model
