"""``aggdec distill``, by the name that recipes and results call it: see fairseq_aggdec/cli/distill.py."""

from fairseq_aggdec.cli.distill import *  # noqa: F403
from fairseq_aggdec.cli.main import run_script

if __name__ == "__main__":
    run_script("distill")
