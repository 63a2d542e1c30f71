"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/interleaved_figures.py."""

import sys

from fairseq_aggdec.cli.interleaved_figures import main

if __name__ == "__main__":
    main(sys.argv[1:])
