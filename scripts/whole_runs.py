"""The tool of this name, where recipes and results call it: see scripts/recipes/gad/whole_runs.py."""

from scripts.recipes.gad.whole_runs import main

if __name__ == "__main__":
    main()
