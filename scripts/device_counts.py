"""The tool of this name, where recipes and results call it: see scripts/recipes/gpu/counts_table.py."""

from scripts.recipes.gpu.counts_table import main

if __name__ == "__main__":
    main()
