"""``aggdec doctor``: reports what this machine and a checkpoint will use."""

import copy
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from fairseq.utils import split_paths
from torch import nn

from fairseq_aggdec.api.languages import make_task
from fairseq_aggdec.api.loading import from_pretrained, make_config
from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.cli.parsers.doctor import model_and_data
from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.drafters.chain import follows_alike
from fairseq_aggdec.drafters.copy.copy_on_device import copies_alike
from fairseq_aggdec.drafters.slot_window import read_alike
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.engine.linear import against_bfloat16, packing_available
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap, parts_gap
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels import gpu, huge_pages
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.kernels.stored import used
from fairseq_aggdec.kernels.switches import INSTRUCTIONS, VARIABLE
from fairseq_aggdec.methods.options.kinds import KINDS, VERIFIED
from fairseq_aggdec.models.base_checkpoint import MASK_EMBEDDING
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder
from fairseq_aggdec.packed.folder import ModelFiles, taken
from fairseq_aggdec.records import machine
from fairseq_aggdec.search.beam.fused import chooses_alike, chooses_at_once
from fairseq_aggdec.search.engines import STOCK, of_models
from fairseq_aggdec.search.verification.fused import decides_alike
from fairseq_aggdec.stored.checkpoints import load_model
from fairseq_aggdec.stored.loading import CheckpointError, check_sums, unreadable

Lines = Iterator[tuple[str, str]]

# What fused kernels do -> whether they do it as PyTorch's operators do.
GPU_KERNELS: dict[str, gpu.operators.Probe] = {
    "accepting and committing": decides_alike,
    "attention of windows": gpu.attention.attends_alike,
    "drafts copied from texts": copies_alike,
    "slots of a drafter": read_alike,
    "embeddings of a window": gpu.embedding.embeds_alike,
    "embeddings of sources": gpu.embedding.places_alike,
    "chain of a drafter": follows_alike,
    "largest logits": gpu.largest.finds_alike,
    "likeliest tokens": gpu.largest.ranks_alike,
    "steps of beam search": chooses_alike,
    "steps of beam search with their candidates": chooses_at_once,
    "layers for few rows": gpu.products.computes_alike,
    "logits of few slots": gpu.logits.projects_alike,
    "attention to a source with its queries": gpu.cross.crosses_alike,
    "dependent launches": gpu.dependent.begins_early,
}

SHARED = 0.6  # share of common types from which on outputs may copy inputs


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed("doctor", arguments)
    named, data = model_and_data(args)
    if args.try_kernels:
        if not torch.cuda.is_available():
            raise SystemExit("error: --try-kernels: PyTorch finds no GPU here")
        try_all()
    show("machine", of_machine())
    if named is None or data is None:
        return
    for path in split_paths(named):
        show(path, of_checkpoint(taken(path), data))
    show("who decodes", of_methods(named, data, args.drafter_path, args.decoding))


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
        device = torch.device("cuda", torch.cuda.current_device())
        yield "GPU kernels", gpu.operators.describe(gpu.operators.running(device, torch.float16))
        for name, state in of_gpu_kernels(device):
            yield "", f"{name}: {state}"
    versions = here["versions"]
    assert isinstance(versions, dict)
    yield "versions", ", ".join(f"{name} {number}" for name, number in versions.items())


def of_gpu_kernels(device: torch.device) -> Lines:
    """Reports what each fused kernel does for the loop, and whether it runs or PyTorch's operators do."""
    for name, agree in GPU_KERNELS.items():
        reasons: dict[str | None, list[str]] = {}
        for one, dtype in gpu.operators.probes():
            if one is agree:
                reason = gpu.operators.against(device, agree, *dtype)
                reasons.setdefault(reason, []).extend(str(x).split(".")[1] for x in dtype)
        plain = "none" if agree is gpu.dependent.begins_early else "PyTorch's operators"
        yield (
            name,
            "; ".join(
                " ".join(
                    filter(None, [", ".join(kernels), f"{plain}: {reason}" if reason else "runs"])
                )
                for reason, kernels in reasons.items()
            ),
        )


def try_all(
    place: Callable[[], AbstractContextManager[gpu.trying.Place]] = gpu.trying.on_card,
) -> None:
    """Tries every kernel of a GPU on the current card, and says what comes of each."""
    card = gpu.proof.card_of(torch.device("cuda", torch.cuda.current_device()))
    print(f"kernels on {', '.join(card)}; what is right and faster runs from now on")
    kept = list[bool]()
    for name, finding, written in gpu.trying.try_kernels(card, place):
        times = ", ".join(
            f"{rows} rows {fused * 1e3:.1f} us, operators {plain * 1e3:.1f} us"
            for rows, (fused, plain) in finding.milliseconds.items()
        )
        print(f"  {name}: {finding.verdict}{f' ({times})' if times else ''}", flush=True)
        kept.append(written)
    if not all(kept):
        print(f"nothing could be kept: {gpu.nvrtc.without_folder()}")
    gpu.operators.forget()


def of_kernels() -> str:
    """Names the compiled library that is taken."""
    library = kernels()
    limit = os.environ.get(VARIABLE)
    limited = f" ({VARIABLE}={limit})" if limit else ""
    if library is None:
        return f"none: PyTorch's operators do their work, slower{limited}"
    return f"compiled for {INSTRUCTIONS[library.aggdec_instructions()]}{limited}"


def of_checkpoint(files: ModelFiles, data: Path) -> Lines:
    """Reports what a checkpoint is, which forms its parts take, what it refuses and which method suits it."""
    path, state = files.checkpoint, files.load()
    yield "sums", sums_of(files)
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
    files.attach(model)
    scorer = isinstance(model.decoder, MarkovDecoder)
    gaps = encoder_gap(model.encoder), (parts_gap if scorer else decoder_gap)(model.decoder)
    how = Precision(int8=files.kind == "int8", bf16=files.kind == "bf16")
    slow = "by stock fairseq, slowly"
    with used([model]) as count:
        encoder = gaps[0] or form(FastEncoder(model.encoder, how))
        decoder = gaps[1] or form(CachedDecoder(model.decoder, how))
    yield "encoder", f"as it is, unpacked: {encoder}" if gaps[0] else encoder
    yield "decoder", f"{slow}: {decoder}" if gaps[1] else decoder
    if files.kind is not None:
        yield (
            "packed",
            f"{count.stored} of {count.products} products come from the folder ({files.kind})",
        )
    yield "int8", int8_of(model, gaps)
    beam = of_models([model])
    yield "beam", f"left to stock fairseq: {beam}" if beam else "ours, over trees of prefixes"
    refused = list(refusals_of(model))
    yield "refused", "; ".join(refused) if refused else "nothing"
    yield "advice", advice(model, task, gaps[1])


def sums_of(files: ModelFiles) -> str:
    """Tells whether a checkpoint has the bytes that were written; one in a folder was compared when it was opened.

    Raises:
        CheckpointError: it is damaged.
    """
    if files.folder is not None:
        return "those that `aggdec pack` wrote"
    try:
        if files.file is not None:
            check_sums(files.file)
    except zipfile.BadZipFile as error:
        raise unreadable(files.checkpoint, error) from None
    return "right, where the file has any"


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


def of_methods(path: str, data: Path, drafter: str | None, named: str | None) -> Lines:
    """Who decodes a sentence with each method, or with the one that is named, and why nobody else does.

    Args:
        path, data, drafter: as for :func:`~fairseq_aggdec.from_pretrained`.
    """
    decoder = from_pretrained(path, data, "stock")
    task = decoder.task
    task.settings.drafter_path, task.quiet = drafter, True
    end = task.source_dictionary.eos()
    source = torch.tensor([[end + 2, end]], device=decoder.device)
    lengths = torch.tensor([2], device=decoder.device)
    sample = {"id": torch.tensor([0]), "net_input": {"src_tokens": source, "src_lengths": lengths}}
    for method in KINDS if named is None else [named]:
        task.settings.decoding = method
        try:
            generation = copy.deepcopy(decoder.generation)
            generator = task.build_generator(decoder.models, generation)
            task.inference_step(generator, decoder.models, sample)
        except (ValueError, FileNotFoundError, CheckpointError) as error:
            yield method, f"refused: {' '.join(str(error).split())}"
            continue
        answers = getattr(generator, "engines", task.asked_engines)
        if not answers:
            yield method, "decodes: stock fairseq, as it is asked for"
        for engine, gap in answers:
            what = f"not {engine.title}: {gap}" if gap else f"decodes: {engine.title}"
            yield method, what
        length = getattr(getattr(generator, "drafter", None), "draft_length", None)
        if length is not None:
            yield method, f"calls cost --call-price {length.price}"
        if answers and answers[-1][0] is not STOCK:
            gap = STOCK.gap(generator._request())
            yield (
                method,
                f"not {STOCK.title}: {gap}" if gap else f"{STOCK.title} would give the same",
            )


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
