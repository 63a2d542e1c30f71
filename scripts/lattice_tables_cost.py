"""The tool of this name, where recipes and results call it: see scripts/recipes/lattice/tables_cost.py."""

from scripts.recipes.lattice.tables_cost import main

if __name__ == "__main__":
    main()
