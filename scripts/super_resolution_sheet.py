"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/super_resolution_sheet.py."""

from fairseq_aggdec.cli.super_resolution_sheet import main

if __name__ == "__main__":
    main()
