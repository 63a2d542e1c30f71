"""``aggdec trace``, by the name that recipes and results call it: see fairseq_aggdec/cli/trace.py."""

from fairseq_aggdec.cli.main import run_script
from fairseq_aggdec.cli.trace import *  # noqa: F403

if __name__ == "__main__":
    run_script("trace")
