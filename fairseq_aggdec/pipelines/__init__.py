"""Every task of fairseq: the generator that it builds is taken over."""
