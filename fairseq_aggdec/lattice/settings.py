"""Sizes of the candidate model's tables that the command line names too; loads nothing."""

POSITIONS = 2**12  # sentences are shorter than this
TOP = 40  # the paper's candidates per (source token, offset)
HELD_OUT = 500  # training pairs on which the weights of interpolation are chosen, at most
