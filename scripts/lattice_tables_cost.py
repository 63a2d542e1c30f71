"""The tool of this name, where recipes and results call it: see fairseq_aggdec/cli/lattice_tables_cost.py."""

from fairseq_aggdec.cli.lattice_tables_cost import main

if __name__ == "__main__":
    main()
