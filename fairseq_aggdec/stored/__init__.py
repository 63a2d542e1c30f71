"""Files of models: what a checkpoint may hold, how it is loaded, and that it stays the same file afterwards.

No code of a file runs.
"""
