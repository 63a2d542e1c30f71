"""fairseq_aggdec: several times faster encoder-decoder generation inside fairseq's own commands.

Importing the package (``--user-dir fairseq_aggdec``) registers its tasks, models and criterions.
"""

from fairseq_aggdec import compat

compat.check_fairseq()
compat.register_safe_globals()

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
