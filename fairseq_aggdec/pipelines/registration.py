"""Registration of this package with fairseq: tasks, models and criterions, and which plain data checkpoints may hold.

Importing this module registers all of it, once. Only entry points do: ``--user-dir``, the commands, the Python
interface, and a user's own import of fairseq beside ``fairseq_aggdec``.
"""

from fairseq_aggdec.startup import hub, known_fairseq
from fairseq_aggdec.stored import loading

known_fairseq.check_pytorch()
known_fairseq.check_fairseq()
loading.register_safe_globals()


from fairseq_aggdec.criterions import blockwise_loss, glancing_loss  # noqa: E402
from fairseq_aggdec.models import (  # noqa: E402
    blockwise_transformer,
    interleaved_transformer,
    lattice_transformer,
    nar_drafter,
    swish_transformer,
)
from fairseq_aggdec.pipelines.takeover import is_enabled, take_over_tasks  # noqa: E402
from fairseq_aggdec.tasks import translation_aggdec  # noqa: E402

hub.watch_hub(is_enabled)
take_over_tasks()

__all__ = [
    "blockwise_loss",
    "blockwise_transformer",
    "glancing_loss",
    "interleaved_transformer",
    "lattice_transformer",
    "nar_drafter",
    "swish_transformer",
    "translation_aggdec",
]
