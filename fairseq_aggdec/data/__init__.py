"""Data of the plugin."""

from fairseq_aggdec import registration  # noqa: F401  (first: nothing is half imported then)
