"""The tool of this name, where recipes and results call it: see scripts/recipes/lattice/recall_table.py."""

from scripts.recipes.lattice.recall_table import main

if __name__ == "__main__":
    main()
