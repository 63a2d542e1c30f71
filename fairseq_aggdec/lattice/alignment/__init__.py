"""Word alignment of training pairs (fast_align), which the tables of candidates are counted from."""
