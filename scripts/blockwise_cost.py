"""The tool of this name, where recipes and results call it: see scripts/recipes/blockwise/cost.py."""

import sys

from scripts.recipes.blockwise.cost import main

if __name__ == "__main__":
    main(sys.argv[1:])
