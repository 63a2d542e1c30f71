"""Other engines as systems of the benchmark, on the checkpoint that is benchmarked."""

import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import GenerationConfig
from omegaconf import DictConfig, OmegaConf

import fairseq_aggdec
from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import hugging_face
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.startup import installing


@dataclass(frozen=True)
class Engine:
    """Tells how another engine decodes.

    Attributes:
        library: ``CTranslate2`` or ``Hugging Face transformers``.
        form: precision, as the library names it.
        beam: of its search, 1 for greedy.
        rows: sentences of a batch at most, which CTranslate2 makes itself; 0: batches as they are given.
    """

    library: str
    form: str = "float32"
    beam: int = 1
    rows: int = 0

    @property
    def label(self) -> str:
        search = "greedy" if self.beam == 1 else f"beam {self.beam}"
        if self.library == CTRANSLATE2:
            batching = f", its own batches of {self.rows}" if self.rows else ""
            return f"{self.library} {self.form}, {search}{batching}"
        more = [f", {short}" for short, form in HALF.items() if form == self.form]
        return "".join([f"{self.library}, {search}", *more])


CTRANSLATE2, TRANSFORMERS = "CTranslate2", "Hugging Face transformers"
HALF = {"bf16": "bfloat16", "fp16": "float16"}  # in the names of systems -> as PyTorch names it
SEARCHES = {"": 1, "-beam5": 5}
FORMS = ("float32", "float16", "bfloat16", "int8")
ENGINES = {
    **{
        f"ct2-{form}{ending}": Engine(CTRANSLATE2, form, beam)
        for form in FORMS
        for ending, beam in SEARCHES.items()
    },
    **{f"ct2-{form}-own": Engine(CTRANSLATE2, form, rows=32) for form in FORMS},
    **{f"hf{ending}": Engine(TRANSFORMERS, beam=beam) for ending, beam in SEARCHES.items()},
    **{
        f"hf{ending}-{short}": Engine(TRANSFORMERS, form, beam)
        for ending, beam in SEARCHES.items()
        for short, form in HALF.items()
    },
}

# Generation options that every engine here is told; "--beam" is in the name of a system.
TOLD = {"beam", "max_len_a", "max_len_b", "min_len"}
# Those that only say which is the best of several finished hypotheses, of which greedy search has one.
RANKING = {"lenpen", "unnormalized", "no_early_stop"}
# Those without effect by themselves, or on what an engine writes.
SILENT = {"lm_weight", "sampling_topk", "sampling_topp", "diverse_beam_strength", "print_alignment"}
SILENT |= {"retain_iter_history", "retain_dropout_modules", "no_seed_provided"}


def refuse_untold(name: str, session: Session, beam: int) -> None:
    """Ends with a sentence about an option of generation that an engine is not told: it would decode otherwise.

    Args:
        name: of the system. beam: of its search.
    """
    known = TOLD | SILENT | (RANKING if beam == 1 else set())
    chosen, unset = session.cfg.generation, GenerationConfig()
    for option in sorted(set(GenerationConfig.__dataclass_fields__) - known):
        if not option.startswith("_") and chosen[option] != getattr(unset, option):
            spelt = "--" + option.replace("_", "-")
            raise SystemExit(f"error: {name} is not told {spelt}, and would decode without it")


def only_model(name: str, session: Session) -> Any:
    """The session's model; ends with a sentence about what an engine cannot do with it."""
    engine = ENGINES[name]
    if len(session.models) > 1:
        raise SystemExit(f"error: {engine.library} decodes with one model, --path names several")
    refuse_untold(name, session, engine.beam)
    if engine.form == "float16" and not session.cuda:
        raise SystemExit(f"error: --systems {name} needs a GPU")
    return session.models[0]


def ctranslate2_system(name: str, session: Session, alone: bool = False) -> System:
    """CTranslate2's search on the same checkpoint.

    It gets as many threads as torch has now. int8 gets one unless it is ``alone`` in its process: with two, beside
    others, it has been seen ten times slower.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise SystemExit(
            f"error: --systems {name} needs CTranslate2: {installing.advice('ctranslate2')}"
        ) from error
    task, engine, model = session.task, ENGINES[name], only_model(name, session)
    one_thread = engine.form == "int8" and not alone
    with tempfile.TemporaryDirectory(prefix="ct2-") as folder:
        checkpoint, converted = Path(folder, "fairseq.pt"), str(Path(folder, "converted"))
        write_for_ctranslate2(session, model, checkpoint)
        ctranslate2.converters.FairseqConverter(
            str(checkpoint),
            task.cfg.data,
            source_lang=task.cfg.source_lang,
            target_lang=task.cfg.target_lang,
            user_dir=fairseq_aggdec.__path__[0],
        ).convert(converted)
        checkpoint.unlink()
        translator = ctranslate2.Translator(
            converted,
            device="cuda" if session.cuda else "cpu",
            compute_type=engine.form,
            intra_threads=1 if one_thread else torch.get_num_threads(),
            inter_threads=1,
        )
    generation = session.cfg.generation
    source, target = task.source_dictionary, task.target_dictionary
    special = {source.pad(), source.eos()}

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        rows = sample["net_input"]["src_tokens"].tolist()
        words = [[source[token] for token in row if token not in special] for row in rows]
        limit = int(generation.max_len_a * len(rows[0]) + generation.max_len_b)
        results = translator.translate_batch(
            words,
            beam_size=engine.beam,
            max_batch_size=engine.rows,
            max_decoding_length=limit,
            min_decoding_length=generation.min_len,
        )
        return [
            [*(target.index(word) for word in result.hypotheses[0]), target.eos()]
            for result in results
        ]

    return System(name, decode)


def hugging_face_system(name: str, session: Session) -> System:
    """The search of Hugging Face transformers on the same weights."""
    engine, model = ENGINES[name], only_model(name, session)
    try:
        made = hugging_face.exported(model, session.task.target_dictionary)
    except ImportError as error:
        raise SystemExit(
            f"error: {name} needs {engine.library}: {installing.advice('transformers')}"
        ) from error
    device = torch.device("cuda" if session.cuda else "cpu")
    made.to(device, getattr(torch, engine.form))
    generation = session.cfg.generation

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        tokens = sample["net_input"]["src_tokens"].to(device)
        limit = int(generation.max_len_a * tokens.size(1) + generation.max_len_b)
        limit = min(limit, model.max_decoder_positions() - 1)
        return hugging_face.translate(made, tokens, limit, generation.min_len, engine.beam)

    return System(name, decode)


def write_for_ctranslate2(session: Session, model: Any, path: Path) -> None:
    """A model as the converter reads it: options of model and task flat in one Namespace."""
    options: dict[str, Any] = {}
    for part in (session.saved.task, session.saved.model):
        plain = OmegaConf.to_container(part) if isinstance(part, DictConfig) else vars(part)
        assert isinstance(plain, dict)
        options.pop("_name", None)
        options.update({str(name): value for name, value in plain.items()})
    options["task"] = "translation"
    parameters = {
        name: value.float().cpu() if value.is_floating_point() else value.cpu()
        for name, value in model.state_dict().items()
    }
    torch.save({"args": Namespace(**options), "model": parameters}, path)
