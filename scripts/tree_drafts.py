"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/tree_drafts.py."""

from fairseq_aggdec.cli.tree_drafts import main

if __name__ == "__main__":
    main()
