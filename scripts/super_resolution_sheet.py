"""The tool of this name, where recipes and results call it: see scripts/recipes/images/sheet.py."""

from scripts.recipes.images.sheet import main

if __name__ == "__main__":
    main()
