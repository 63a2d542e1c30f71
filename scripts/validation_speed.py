"""The tool of this name, where recipes and results call it: see scripts/recipes/beam/validation_speed.py."""

from fairseq_aggdec.records import results
from scripts.recipes.beam.validation_speed import main

if __name__ == "__main__":
    with results.refusals():
        main()
