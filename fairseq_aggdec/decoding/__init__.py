"""The cached decoder, the loop and the generators."""

from fairseq_aggdec import registration  # noqa: F401  (first: nothing is half imported then)
