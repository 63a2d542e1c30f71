"""Beam search that writes several words per step."""
