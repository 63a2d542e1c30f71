"""Every method with every kind of model that it runs, tiny and random: what a device has to be able to do.

The tests of the strict device and of a real GPU decode each case there; :mod:`counts` counts what it asks of the
device. A new method is a new line of ``CASES``.
"""

from __future__ import annotations

import copy
import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fairseq_aggdec.lattice.candidates import Shortlist
from fairseq_aggdec.methods import gad as gad_method
from tests.random_models import (
    make_batch,
    make_model,
    make_task,
    random_sources,
    random_tables,
)

# Registers its architectures. Outside of pytest, as in scripts and the processes that they start, it is on no path.
sys.path.append(str(Path(__file__).parents[3] / "scripts" / "recipes" / "images"))
importlib.import_module("aggdec_images")

Hypotheses = list[list[dict[str, Any]]]
Options = dict[str, Any]

CHANGED_BY_SHORTLIST = 3


@dataclass(frozen=True)
class Case:
    """A method, its models and options.

    Attributes:
        name: for tables and tests.
        decoding: ``--decoding``.
        arch, model: architecture of the verifier and its options.
        drafter: architecture and options of the drafter or writer; None for none.
        task, generation: options of the task and of generation.
        models: members of the ensemble.
        prefix: forced tokens, one row per sentence.
        stock: what is written is what stock fairseq writes with ``beam``; else the method on CPU is the reference.
        files: it needs ``draft`` (a file of drafts) or ``tables`` (of candidates).
    """

    name: str
    decoding: str
    arch: str = "transformer"
    model: Options = field(default_factory=dict)
    drafter: tuple[str, Options] | None = None
    task: Options = field(default_factory=dict)
    generation: Options = field(default_factory=dict)
    models: int = 1
    prefix: tuple[tuple[int, ...], ...] | None = None
    stock: bool = True
    files: tuple[str, ...] = ()


def _gad(name: str, options: Options, **more: Any) -> Case:
    return Case(name, "gad", drafter=("nar_drafter", {"block_size": 5} | options), **more)


NEXT_CHAIN = {"slot_predicts": "next", "slot_chain": True, "prefix_attention": "causal"}
COPY = {"src_embedding_copy": True, "decoder_learned_pos": True}
SLOTS = {"directions": 2, "words_per_direction": 2}
HEADS = {"block_size": 4, "head_hidden_dim": 8}
LATTICE = {"lattice_candidates": 5, "lattice_length_window": 1}
PREFIX = ((5, 6, 7), (9, 1, 1), (4, 4, 1), (10, 11, 1))
LENGTH = {"draft_tokens": "5"}  # a random model soon teaches that no draft stands
MATCHES = ("unique", "longest", "recent", "aligned")

CASES = [
    Case("greedy", "greedy"),
    Case("greedy, two models", "greedy", models=2),
    Case("greedy, no graphs", "greedy", task={"no_graphs": True}),
    *[Case(f"iad, {match}", "iad", task={"iad_match": match} | LENGTH) for match in MATCHES],
    Case("iad, learned length", "iad"),
    Case("iad, no graphs", "iad", task={"no_graphs": True} | LENGTH),
    Case("iad, drafts from a file", "iad", task={"draft_from": "file"} | LENGTH, files=("draft",)),
    _gad("gad", {}),
    _gad("gad, no graphs", {}, task={"no_graphs": True}),
    _gad("gad, causal", {"prefix_attention": "causal"}),
    _gad("gad, source copy", COPY),
    _gad("gad, source copy, causal", COPY | {"prefix_attention": "causal"}),
    _gad("gad, next", {"slot_predicts": "next"}),
    _gad("gad, chain", {"slot_chain": True}),
    _gad("gad, next, chain, causal", NEXT_CHAIN),
    _gad("gad, shared encoder", {"shares_encoder": True}),
    _gad("gad, block size auto", {}, task={"draft_tokens": "auto"}),
    _gad("gad, trees", {}, task={"draft_tree": "7"}),
    _gad("gad, trees, next, chain, causal", NEXT_CHAIN, task={"draft_tree": "12"}),
    _gad(
        "gad, top-beta",
        {},
        task={"acceptance": "top-beta:3:2.0,min:2"},
        stock=False,
    ),
    *[
        Case(f"blockwise, {layout}", "blockwise", "blockwise_transformer", model)
        for layout, model in (
            ("dense", HEADS | {"head_layout": "dense"}),
            ("per head", HEADS | {"head_layout": "per-head", "identity_first_head": True}),
        )
    ],
    Case("nar", "nar", drafter=("nar_drafter", {"block_size": 5}), stock=False),
    Case("nar, chain", "nar", drafter=("nar_drafter", {"block_size": 5} | NEXT_CHAIN), stock=False),
    Case(
        "nar, source copy",
        "nar",
        drafter=("nar_drafter", {"block_size": 5} | COPY | NEXT_CHAIN),
        stock=False,
    ),
    *[
        Case(f"beam {name}", "beam", generation={"beam": beam} | generation, task=task)
        for name, beam, task, generation in (
            ("3", 3, {}, {}),
            ("5, nothing drafted", 5, {"draft_from": "none"}, {}),
            ("4, options", 4, {}, {"min_len": 4, "unkpen": 2.0, "lenpen": 0.5, "max_len_a": 0.5}),
            ("3, alignment", 3, {}, {"print_alignment": "hard"}),
        )
    ],
    Case(
        "interleaved, one word, beam 3",
        "interleaved",
        "interleaved_transformer",
        {"directions": 1, "words_per_direction": 1},
        generation={"beam": 3},
    ),
    *[
        Case(
            f"interleaved, 2x2, {name}",
            "interleaved",
            "interleaved_transformer",
            SLOTS | model,
            task=task,
            generation={"beam": 3} | generation,
            stock=False,
        )
        for name, model, task, generation in (
            ("beam 3", {}, {}, {}),
            ("any ending", {}, {"stop_rule": "any", "end_condition": "all", "dedup": 2}, {}),
            ("independent", {"independent_directions": True}, {}, {"print_alignment": "hard"}),
        )
    ],
    *[
        Case(
            f"lattice, {name}",
            "lattice",
            "lattice_transformer",
            {"decoder_layers": 1},
            task=LATTICE,
            generation={"nbest": nbest},
            stock=False,
            files=("tables",),
        )
        for name, nbest in (
            ("serial", 1),
            ("3 best", 3),
        )
    ],
    *[
        Case(f"{name}, {decoding}", decoding, generation=generation, prefix=prefix)
        for decoding in ("greedy", "iad")
        for name, generation, prefix in (
            ("minimum length", {"min_len": 9}, None),
            ("short", {"max_len_b": 3}, None),
            ("source length", {"match_source_len": True}, None),
            ("unknown words", {"unkpen": -4.0}, None),
            ("hot, unnormalized", {"temperature": 2.5, "unnormalized": True}, None),
            ("alignment", {"print_alignment": "hard"}, None),
            ("history", {"retain_iter_history": True}, None),
            ("prefix", {}, PREFIX),
        )
    ],
    # Stock fairseq ignores this option without its CUDA extension.
    Case("no repeated n-grams, iad", "iad", generation={"no_repeat_ngram_size": 2}, stock=False),
    _gad("no repeated n-grams, gad", {}, generation={"no_repeat_ngram_size": 2}, stock=False),
    Case(
        "no repeated n-grams, nar",
        "nar",
        drafter=("nar_drafter", {"block_size": 5}),
        generation={"no_repeat_ngram_size": 3},
        stock=False,
    ),
    _gad("options together, gad", {}, generation={"min_len": 6, "unkpen": -2.0, "max_len_b": 9}),
    _gad("prefix, gad", {}, prefix=PREFIX),
    *[
        Case(f"shortlist, {decoding}", decoding, task={"shortlist": 3}, files=("tables",))
        for decoding in ("greedy", "iad")
    ],
    Case("strict, iad", "iad", task={"strict": 4}),
    Case(
        "image, band",
        "blockwise",
        "blockwise_image_transformer",
        HEADS | {"block_size": 3, "attention_span": 4},
    ),
]


@dataclass
class Prepared:
    """A case that is ready to be decoded on a device, any number of batches."""

    task: Any
    generator: Any
    models: list[Any]
    device: torch.device

    def decode(self, sample: dict[str, Any], prefix: Tensor | None) -> Hypotheses:
        if prefix is not None:
            prefix = prefix.to(self.device)
        with torch.no_grad():
            found: Hypotheses = self.task.inference_step(
                self.generator, self.models, moved(sample, self.device), prefix_tokens=prefix
            )
        return found


def moved(sample: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A batch on a device, as ``utils.move_to_cuda`` leaves it."""
    net_input = {name: value.to(device) for name, value in sample["net_input"].items()}
    return sample | {"id": sample["id"].to(device), "net_input": net_input}


def batch(seed: int, rows: int, longest: int = 12) -> dict[str, Any]:
    return make_batch(random_sources(seed, rows, longest))


def prefix_of(case: Case, rows: int) -> Tensor | None:
    return None if case.prefix is None else torch.tensor(case.prefix[:rows])


def random_models(case: Case, sizes: Options) -> tuple[list[Any], Any]:
    """The verifiers of a case and its drafter (or None), on the CPU."""
    task = make_task()
    models = [
        make_model(task, 5 + i, case.arch, **(sizes | case.model)) for i in range(case.models)
    ]
    if case.drafter is None:
        return models, None
    arch, options = case.drafter
    drafter = make_model(task, 3, arch, **(sizes | options))
    if arch == "nar_drafter" and drafter.shares_encoder:
        drafter.encoder.load_state_dict(models[0].encoder.state_dict())
    return models, drafter


@contextmanager
def _handed_over(drafter: Any) -> Iterator[None]:
    """A drafter's checkpoint need not be written: whoever loads one gets this."""
    with mock.patch.object(gad_method, "load_drafter", lambda *_: copy.deepcopy(drafter).eval()):
        yield


def prepared(
    case: Case,
    models: Sequence[Any],
    drafter: Any,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Prepared:
    """Puts copies of the models on a device and builds the generator of a case.

    Args:
        folder: where files that the case needs are, and are written first where they are not.
    """
    options = dict(case.task)
    if "tables" in case.files:
        options["lattice"] = str(folder / "tables")
        if not (folder / "tables").exists():
            plain = make_task()
            dictionaries = plain.source_dictionary, plain.target_dictionary
            random_tables().save(folder / "tables", *dictionaries, {})
    if "draft" in case.files:
        options["draft_file"] = str(folder / "drafts")
        (folder / "drafts").write_text("w1 w2 w3 w4\n\nw7 w8\n" * 20)
    if case.drafter is not None:
        options["drafter_path"] = "drafter.pt"
    task = make_task(case.decoding, **options)
    own = [copy.deepcopy(model).to(dtype).to(device).eval() for model in models]
    with _handed_over(drafter):
        arguments = Namespace(**({"beam": 1, "max_len_b": 20} | case.generation))
        generator = task.build_generator(own, arguments)
    return Prepared(task, generator, own, device)


def confined(model: Any, source: Tensor) -> Any:
    """A copy of a model that can say nothing outside the shortlist of a batch: what stock then writes."""
    types = Shortlist(random_tables(), CHANGED_BY_SHORTLIST, "interpolated")(source)
    model = copy.deepcopy(model)
    whole = model.decoder.output_layer
    mask = torch.full((len(model.decoder.dictionary),), -torch.inf)
    mask[types] = 0.0
    model.decoder.output_layer = lambda features: whole(features) + mask
    return model


def expected(
    case: Case,
    models: Sequence[Any],
    drafter: Any,
    folder: Path,
    samples: Sequence[dict[str, Any]],
    dtype: torch.dtype = torch.float32,
) -> list[Hypotheses]:
    """What a case must write for batches, on the CPU: stock fairseq's output, or the method's own where it has none."""
    reference = case
    if case.stock:
        reference = Case(case.name, "stock", generation=case.generation, prefix=case.prefix)
    found = []
    for sample in samples:
        own = list(models)
        if "shortlist" in case.task:
            own = [confined(model, sample["net_input"]["src_tokens"]) for model in own]
        cpu = prepared(reference, own, drafter, folder, torch.device("cpu"), dtype)
        rows = len(sample["id"])
        found.append(cpu.decode(sample, prefix_of(case, rows)))
    return found
