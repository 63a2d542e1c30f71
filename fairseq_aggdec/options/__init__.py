"""What fairseq asks of a generator and what it gets: generation options, limits of lengths, hypotheses."""
