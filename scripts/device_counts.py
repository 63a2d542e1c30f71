"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/device_counts.py."""

from fairseq_aggdec.cli.device_counts import main

if __name__ == "__main__":
    main()
