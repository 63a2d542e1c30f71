"""Entry for Ray Data and Spark: ``from fairseq_aggdec.ray import Translate``, see :mod:`fairseq_aggdec.bulk.ray`."""

from fairseq_aggdec.bulk.ray import Translate

__all__ = ["Translate"]
