"""fairseq's Transformer with the activation of Marian: ``x * sigmoid(x)``.

fairseq knows the name ``swish``, but no layer can be built with it: it stands for a class, not for a function.
"""

from argparse import Namespace
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from torch.nn import functional

NAME = "transformer_swish"


@register_model(NAME)
class SwishTransformerModel(TransformerModel):
    """A plain Transformer but for the activation of its layers."""

    def __init__(self, args: Any, encoder: Any, decoder: Any):
        super().__init__(args, encoder, decoder)
        for layer in (*encoder.layers, *decoder.layers):
            layer.activation_fn = functional.silu


@register_model_architecture(NAME, NAME)
def swish_architecture(args: Namespace) -> None:
    """The sizes of fairseq's ``transformer``."""
    base_architecture(args)
