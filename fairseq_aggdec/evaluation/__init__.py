"""Evaluation of the plugin."""

import logging

# fairseq lets everybody log at DEBUG, which fills pages here.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
