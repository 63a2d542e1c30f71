"""Searches of whole batches in the compiled library: one call for all iterations.

PyTorch reads the windows where the library does not have the layers.
"""
