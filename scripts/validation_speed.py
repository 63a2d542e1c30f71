"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/validation_speed.py."""

from fairseq_aggdec.cli.validation_speed import main
from fairseq_aggdec.evaluation import results

if __name__ == "__main__":
    with results.refusals():
        main()
