"""``--decoding lattice``: opens the tables and builds the generator of Deng and Rush (2021)."""

from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.lattice.generator import REFUSED, LatticeGenerator
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import OF_LATTICE, Settings
from fairseq_aggdec.methods.refusing import refuse_own_generator
from fairseq_aggdec.methods.shared.candidates import open_candidates
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder
from fairseq_aggdec.search.errors import refuse


def check_sizes(cfg: Settings) -> None:
    """Raises ``ValueError`` with one sentence for a size or a probability that no lattice can have."""
    candidates, window = cfg.lattice_candidates, cfg.lattice_length_window
    if window < 0:
        raise ValueError(f"{cfg.as_given('lattice_length_window')}: it must be at least 0")
    if candidates < 1:
        raise ValueError(f"{cfg.as_given('lattice_candidates')}: it must be at least 1")
    if window and candidates < 3:
        raise ValueError(
            f"{cfg.as_given('lattice_candidates')} leaves no room for a word beside </s> and padding: "
            "take 3 or more, or --variant lattice-length-window=0"
        )
    if not 0 <= cfg.lattice_least_probability <= 1:
        raise ValueError(f"{cfg.as_given('lattice_least_probability')}: it must be 0 to 1")


def refuses(request: Request) -> None:
    refuse("lattice", REFUSED, request.args, request.extra)
    refuse_own_generator(request.task, "lattice")


def build(request: Request) -> LatticeGenerator:
    """The generator, of models of ``--arch lattice_transformer``."""
    cfg, task = request.cfg, request.task
    check_sizes(cfg)
    for model in request.models:
        if not isinstance(model.decoder, MarkovDecoder):
            raise ValueError(
                f"a lattice needs a model of --arch lattice_transformer; that of --path has a "
                f"{type(model.decoder).__name__}"
            )
    options = {
        "candidate_model": open_candidates(cfg, task),
        "counters": task.counters,
        "candidates": cfg.lattice_candidates,
        "least": cfg.lattice_least_probability,
        "length_window": cfg.lattice_length_window,
        "smoothing": cfg.lattice_smoothing,
        "normalise": cfg.lattice_normalise,
        "count": request.option("nbest", 1),
        "precision": Precision(pack=not cfg.low_memory, tf32=tf32_allowed()),
    }
    generator: LatticeGenerator = request.make_alone(LatticeGenerator, options)
    return generator


METHOD = Method("lattice", lambda settings: {*OF_LATTICE, "low_memory"}, build, refuses)
