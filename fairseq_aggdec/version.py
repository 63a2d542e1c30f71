"""The version, for the package and for its metadata; this file imports nothing, setup.py reads it."""

__version__ = "0.2.0"
