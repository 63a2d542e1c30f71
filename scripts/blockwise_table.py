"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/blockwise_table.py."""

import sys

from fairseq_aggdec.cli.blockwise_table import main

if __name__ == "__main__":
    main(sys.argv[1:])
