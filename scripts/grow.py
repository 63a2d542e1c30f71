"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/grow.py."""

from fairseq_aggdec.cli.grow import main

if __name__ == "__main__":
    main()
