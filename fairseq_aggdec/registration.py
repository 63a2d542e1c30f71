"""What fairseq learns of this package: tasks, models and criterions, and which plain data checkpoints may hold.

Importing this module registers all of it, once. The package has that done together with the first
import of fairseq, so that ``import fairseq_aggdec`` by itself loads neither PyTorch nor fairseq.
"""

from fairseq_aggdec import compat, hub, stored_options

compat.check_fairseq()
compat.register_safe_globals()
stored_options.guard_evaluation()
hub.watch_hub()

from fairseq_aggdec.criterions import blockwise_loss, glancing_loss  # noqa: E402, F401
from fairseq_aggdec.models import (  # noqa: E402
    blockwise_image_transformer,  # noqa: F401
    blockwise_transformer,  # noqa: F401
    image_transformer,  # noqa: F401
    interleaved_transformer,  # noqa: F401
    lattice_transformer,  # noqa: F401
    nar_drafter,  # noqa: F401
)
from fairseq_aggdec.tasks import super_resolution, translation_aggdec  # noqa: E402, F401
