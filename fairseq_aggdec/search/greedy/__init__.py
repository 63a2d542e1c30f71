"""Greedy search, drafted or not: the generator, and the search in the compiled library, on a device and in Python."""
