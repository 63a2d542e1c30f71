"""The tool of this name, where recipes and results call it: see scripts/recipes/gad/tree_drafts.py."""

from scripts.recipes.gad.tree_drafts import main

if __name__ == "__main__":
    main()
