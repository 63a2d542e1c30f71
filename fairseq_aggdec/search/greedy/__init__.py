"""Greedy search, drafted or not: the generator, and the search in the compiled library and on a device."""
