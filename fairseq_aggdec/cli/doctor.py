"""Reports what this machine and a checkpoint will use, what is refused, and which method to take.

aggdec doctor
aggdec doctor --path model.pt DATA
aggdec doctor --path model.pt DATA --decoding gad --drafter-path drafter.pt
"""

import argparse
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.utils import split_paths
from torch import nn

from fairseq_aggdec.api.languages import make_task
from fairseq_aggdec.api.loading import from_pretrained, make_config
from fairseq_aggdec.checkpoints import load_model
from fairseq_aggdec.cli import tool_parser
from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.drafters.chain import follows_alike
from fairseq_aggdec.drafters.copy.copy_on_device import copies_alike
from fairseq_aggdec.drafters.slot_window import read_alike
from fairseq_aggdec.engine.attention import attends_alike, crosses_alike
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.engine.linear import against_bfloat16, packing_available
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap, parts_gap
from fairseq_aggdec.kernels import huge_pages
from fairseq_aggdec.kernels.gpu.arguments import PRECISIONS
from fairseq_aggdec.kernels.gpu.dependent import begins_early
from fairseq_aggdec.kernels.gpu.embedding import embeds_alike, places_alike
from fairseq_aggdec.kernels.gpu.largest import finds_alike, ranks_alike
from fairseq_aggdec.kernels.gpu.logits import projects_alike
from fairseq_aggdec.kernels.gpu.operators import against
from fairseq_aggdec.kernels.gpu.products import computes_alike
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.kernels.switches import INSTRUCTIONS, VARIABLE
from fairseq_aggdec.methods.options.kinds import VERIFIED
from fairseq_aggdec.methods.refusing import beam_gap
from fairseq_aggdec.models.base_checkpoint import MASK_EMBEDDING
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder
from fairseq_aggdec.records import machine
from fairseq_aggdec.search.beam.fused import chooses_alike, chooses_at_once
from fairseq_aggdec.search.judge.fused import decides_alike

Lines = Iterator[tuple[str, str]]

# What fused kernels do -> whether they do it as PyTorch's operators do.
GPU_KERNELS: dict[str, tuple[Any, ...]] = {
    "accepting and committing": (decides_alike,),
    "attention of windows": (attends_alike, *PRECISIONS),
    "drafts copied from texts": (copies_alike,),
    "slots of a drafter": (read_alike,),
    "embeddings of a window": (embeds_alike, *PRECISIONS),
    "embeddings of sources": (places_alike, *PRECISIONS),
    "chain of a drafter": (follows_alike, *PRECISIONS),
    "largest logits": (finds_alike,),
    "likeliest tokens": (ranks_alike,),
    "steps of beam search": (chooses_alike,),
    "steps of beam search with their candidates": (chooses_at_once,),
    "layers for few rows": (computes_alike, *PRECISIONS),
    "logits of few slots": (projects_alike, *PRECISIONS),
    "attention to a source with its queries": (crosses_alike, *PRECISIONS),
    "dependent launches": (begins_early,),
}

SHARED = 0.6  # share of common types from which on outputs may copy inputs


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("doctor", __doc__)
    parser.add_argument("data", nargs="?", type=Path, help="data folder (default: that of --path)")
    parser.add_argument("--path", metavar="FILE", help="checkpoint, or several joined by :")
    parser.add_argument(
        "--decoding", metavar="METHOD", help="say which engine decodes with it, and why not another"
    )
    parser.add_argument("--drafter-path", metavar="FILE", help="drafter of --decoding gad or nar")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.data and not args.path:
        parser.error("--path is missing: name the checkpoint that goes with the data")
    show("machine", of_machine())
    for path in split_paths(args.path) if args.path else ():
        state = load_checkpoint(path)
        data = args.data or Path(path).parent
        show(path, of_checkpoint(path, state, data))
    if args.decoding:
        if not args.path:
            parser.error("--decoding needs the model: give --path")
        data = args.data or Path(split_paths(args.path)[0]).parent
        show(
            f"engines, --decoding {args.decoding}",
            of_engines(args.path, data, args.decoding, args.drafter_path),
        )


def show(title: str, lines: Lines) -> None:
    print(title)
    for name, what in lines:
        print(f"  {name:<12}{what}")


def of_machine() -> Lines:
    """Reports what decoding will find here."""
    here = machine.describe()
    flags = machine.processor_flags()
    yield "processor", f"{here['processor']}, {here['cores']} cores, {here['memory_gib']} GiB"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    waits = os.environ.get("OMP_WAIT_POLICY", "not set")
    count = torch.get_num_threads()
    yield "threads", f"{count} (OMP_NUM_THREADS: {threads}, OMP_WAIT_POLICY: {waits})"
    for name, flag in (("VNNI", "avx512_vnni"), ("AMX", "amx_tile")):
        yield name, "yes" if {flag, flag.replace("512", "")} & flags else "no"
    reason = against_bfloat16()
    ours = "compiled kernels, faster than fp32 one sentence at a time"
    ours += " and in batches" if "amx_bf16" in flags else ", not in large batches"
    theirs = f"likely slower than fp32: {reason}" if reason else "this processor multiplies it"
    yield "bf16", ours if multiplies_bf16() else theirs
    yield "kernels", of_kernels()
    slowly = "--int8 works, slowly: there are no kernels"
    yield "int8", "--int8 pays" if int8_available() else slowly
    yield "packing", "yes" if packing_available() else "no, this PyTorch cannot"
    pages = huge_pages.page_size()
    yield "huge pages", f"{pages >> 20} MiB, used for packed weights" if pages else "none"
    yield "GPU", str(here["gpu"] or "none")
    if torch.cuda.is_available():
        for name, found in of_gpu_kernels(torch.device("cuda", torch.cuda.current_device())):
            yield "GPU kernels", f"{name}: {found}"
    versions = here["versions"]
    assert isinstance(versions, dict)
    yield "versions", ", ".join(f"{name} {number}" for name, number in versions.items())


def of_gpu_kernels(device: torch.device) -> Lines:
    """Reports what each fused kernel does for the loop, and whether it runs or PyTorch's operators do."""
    for name, (agree, *precisions) in GPU_KERNELS.items():
        given: list[tuple[Any, ...]] = [(dtype,) for dtype in precisions] or [()]
        try:
            reason = next(filter(None, (against(device, agree, *one) for one in given)), None)
        except RuntimeError as error:  # it has broken what the process can do on the GPU
            reason = str(error)
        if agree is begins_early:
            yield name, f"none: {reason}" if reason else "in captured graphs"
            continue
        yield name, f"PyTorch's operators, more launches: {reason}" if reason else "compiled"


def of_kernels() -> str:
    """Names the compiled library that is taken."""
    library = kernels()
    limit = os.environ.get(VARIABLE)
    limited = f" ({VARIABLE}={limit})" if limit else ""
    if library is None:
        return f"none: PyTorch's operators do their work, slower{limited}"
    return f"compiled for {INSTRUCTIONS[library.aggdec_instructions()]}{limited}"


def of_checkpoint(path: str, state: dict[str, Any], data: Path) -> Lines:
    """Reports what a checkpoint is, which forms its parts take, what it refuses and which method suits it."""
    trained = (state.get("cfg") or {}).get("task") or {}
    trained = trained if hasattr(trained, "get") else vars(trained)
    yield "trained as", f"task {trained.get('_name')}"
    if MASK_EMBEDDING in state["model"]:
        yield "advice", "this is a drafter: give it to --drafter-path, and its verifier to --path"
        return
    yield "memory", memory_of(state["model"])
    saved = state.get("cfg") or {}
    task = make_task(make_config([path], str(data), "beam", 5, saved, {}), {path: state}, trained)
    model = load_model(path, state, task)
    model.eval()
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    yield "model", f"{type(model).__name__}, {millions:.1f} million parameters"
    scorer = isinstance(model.decoder, MarkovDecoder)
    gaps = encoder_gap(model.encoder), (parts_gap if scorer else decoder_gap)(model.decoder)
    yield (
        "encoder",
        f"as it is, unpacked: {gaps[0]}" if gaps[0] else form(FastEncoder(model.encoder)),
    )
    slow = "by stock fairseq, slowly"
    yield "decoder", f"{slow}: {gaps[1]}" if gaps[1] else form(CachedDecoder(model.decoder))
    yield "int8", int8_of(model, gaps)
    beam = beam_gap(Namespace(), {}, [model])
    yield "beam", f"left to stock fairseq: {beam}" if beam else "ours, over trees of prefixes"
    refused = list(refusals_of(model))
    yield "refused", "; ".join(refused) if refused else "nothing"
    yield "advice", advice(model, task, gaps[1])


def memory_of(parameters: Mapping[str, Any]) -> str:
    """Estimates what decoding on a CPU takes beside Python and PyTorch, from the sizes in the file alone."""
    sizes = {x.data_ptr(): x.numel() for x in parameters.values() if isinstance(x, torch.Tensor)}
    count = sum(sizes.values())
    stored = sum(x.nbytes for x in parameters.values() if isinstance(x, torch.Tensor))
    mapped = all(x.dtype is torch.float32 for x in parameters.values() if x.is_floating_point())
    beside = 0 if mapped else 4 * count
    amounts = (
        f"{name} {(size * count + beside) / 2**20:,.0f}"
        for name, size in (("fp32", 4), ("int8", 1))
    )
    where = "mapped, which takes what is read" if mapped else "in fp32 beside them"
    return f"packed weights, MiB: {', '.join(amounts)}; parameters ({stored / 2**20:,.0f} in the file) {where}"


def of_engines(path: str, data: Path, decoding: str, drafter: str | None) -> Lines:
    """The engines that are asked for a sentence, in order, each with its gap; the last one decodes."""
    decoder = from_pretrained(path, data, decoding, drafter)
    generator, end = decoder.generator, decoder.task.source_dictionary.eos()
    source = torch.tensor([[end + 2, end]], device=decoder.device)
    lengths = torch.tensor([2], device=decoder.device)
    net_input = {"src_tokens": source, "src_lengths": lengths}
    generator.generate(decoder.models, {"id": torch.tensor([0]), "net_input": net_input})
    asked = getattr(generator, "engines", [])
    for engine, gap in asked:
        yield engine.name, f"no: {gap}" if gap else f"decodes: {engine.where}"
    if not asked:
        yield "none", f"a {type(generator).__name__} decodes without asking for one"


def form(part: Any) -> str:
    """Tells how the layers of an encoder or decoder that was packed are run in fp32 on CPU."""
    if part.compiled is not None:
        return "fast form, all layers in one call of the compiled kernels"
    return "fast form, packed weights layer by layer"


def int8_of(model: nn.Module, gaps: Sequence[str | None]) -> str:
    """Tells whether ``--int8`` takes a model with these gaps of encoder and decoder."""
    decoder: Any = model.decoder
    reasons = [gap for gap in gaps if gap is not None]
    if isinstance(decoder, MarkovDecoder):
        reasons.append("not with --decoding lattice")
    return f"refused: {'; '.join(reasons)}" if reasons else "possible"


def refusals_of(model: nn.Module) -> Iterator[str]:
    """The methods that this kind of model cannot take, with the reason."""
    decoder: Any = model.decoder
    several = getattr(decoder, "geometry", Geometry()) != Geometry()
    if several:
        yield f"{', '.join(VERIFIED)}: it writes several words per step"
    if not isinstance(decoder, HeadedDecoder):
        yield "blockwise: it has no block heads (--arch blockwise_transformer)"
    if not isinstance(decoder, MarkovDecoder):
        yield "lattice: it is no scorer (--arch lattice_transformer)"
    else:
        yield f"{', '.join(VERIFIED)}: it reads two words only"


def advice(model: nn.Module, task: Any, gap: str | None) -> str:
    """Recommends a method in one sentence."""
    decoder: Any = model.decoder
    if isinstance(decoder, MarkovDecoder):
        return "--decoding lattice"
    if getattr(decoder, "geometry", Geometry()) != Geometry():
        return "--decoding interleaved"
    if isinstance(decoder, HeadedDecoder):
        return "--decoding blockwise"
    if gap is not None:
        return "--decoding iad where outputs copy their inputs, else --decoding beam"
    source, target = (set(d.symbols) for d in (task.source_dictionary, task.target_dictionary))
    shared = len(source & target) >= SHARED * min(len(source), len(target))
    copying = "iad if outputs mostly copy inputs (error correction, not translation), else "
    return (
        f"--decoding beam, the default; where --beam 1 is good enough, --decoding {copying if shared else ''}greedy, "
        "or gad with a drafter (aggdec train-drafter)"
    )
