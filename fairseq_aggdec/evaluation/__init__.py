"""Evaluation of the plugin."""

import logging

from fairseq_aggdec import registration  # noqa: F401  (first: nothing is half imported then)

# fairseq lets everybody log at DEBUG, which fills pages here.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
