"""The tool of this name, where recipes and results call it: see scripts/recipes/interleaved/training.py."""

import sys

from scripts.recipes.interleaved.training import main

if __name__ == "__main__":
    main(sys.argv[1:])
