"""The tool of this name, where recipes and results call it: see scripts/recipes/blockwise/table.py."""

import sys

from scripts.recipes.blockwise.table import main

if __name__ == "__main__":
    main(sys.argv[1:])
