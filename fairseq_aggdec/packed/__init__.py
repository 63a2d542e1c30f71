"""Folders with packed weights, which processes map and share: written by ``aggdec pack``, read at every door."""
