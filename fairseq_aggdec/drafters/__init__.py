"""Drafters: whatever proposes the tokens that the verifier checks."""

from fairseq_aggdec import registration  # noqa: F401  (first: nothing is half imported then)
