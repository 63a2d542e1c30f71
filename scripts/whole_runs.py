"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/whole_runs.py."""

from fairseq_aggdec.cli.whole_runs import main

if __name__ == "__main__":
    main()
