"""Contract between fairseq and a generator: generation options, limits of lengths, hypotheses."""
