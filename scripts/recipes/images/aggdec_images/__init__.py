"""Image super-resolution, a user directory of its own: its task, models and data.

    fairseq-train DATA --user-dir scripts/recipes/images/aggdec_images --task super_resolution ...

It registers what ``fairseq_aggdec`` does, too.
"""

import fairseq_aggdec.pipelines.registration  # noqa: F401
from fairseq_aggdec.engine.plain.walk import know

from . import super_resolution, transformer

# Packed weights represent their attention over a band of positions (``attention_span``).
know(
    transformer.LocalAttention,
    transformer.ImageTransformerDecoder,
    transformer.BlockwiseImageDecoder,
)

__all__ = ["super_resolution", "transformer"]
