"""fairseq_aggdec: several times faster encoder-decoder generation inside fairseq's own commands.

With fairseq (``--user-dir fairseq_aggdec``, or any import of it) the package registers its tasks, models and
criterions; alone it loads neither fairseq nor PyTorch. The Python interface, :func:`from_pretrained`, is loaded when it
is asked for.
"""

from typing import TYPE_CHECKING, Any

from fairseq_aggdec.startup.after_fairseq import register_with_fairseq
from fairseq_aggdec.version import __version__

if TYPE_CHECKING:
    from fairseq_aggdec.api import Hypothesis, Translator, from_pretrained
    from fairseq_aggdec.pipelines.takeover import adopt

INTERFACE = ["Hypothesis", "Translator", "from_pretrained"]  # loaded when asked for
__all__ = ["Hypothesis", "Translator", "__version__", "adopt", "from_pretrained", "register"]

register_with_fairseq()


def register() -> None:
    """Tells fairseq of our tasks, models and criterions now; imports fairseq if that has not been done."""
    from fairseq_aggdec.pipelines import registration  # noqa: F401  (importing it registers)


def __getattr__(name: str) -> Any:
    if name in INTERFACE:
        from fairseq_aggdec import api

        return getattr(api, name)
    if name == "adopt":
        from fairseq_aggdec.pipelines import takeover

        return takeover.adopt
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
