"""Word alignment of training pairs (fast_align), which the tables of candidates are counted from."""

UNION, DIRECTIONS = "union", ("forward", "reverse")  # of the links of both directions, or of one
