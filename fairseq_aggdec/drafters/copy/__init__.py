"""Drafts copied from a text: the source, a file, a lattice's best path."""
