"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/average_checkpoints.py."""

from fairseq_aggdec.cli.average_checkpoints import main

if __name__ == "__main__":
    main()
