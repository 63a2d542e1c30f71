"""Searches of whole batches in the compiled library: one call for all iterations.

The Python searches are the reference that these are tested against, and decode what these do not.
"""
