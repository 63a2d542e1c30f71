"""The Python interface: :func:`from_pretrained`, :class:`Translator` and its :class:`Hypothesis`.

It is imported when ``fairseq_aggdec.from_pretrained`` is first asked for, not with the package.
"""

from fairseq_aggdec.api.decoding import Hypothesis
from fairseq_aggdec.api.loading import from_pretrained
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.pipelines import registration  # noqa: F401  (first: nothing is half imported then)

__all__ = ["Hypothesis", "Translator", "from_pretrained"]
