"""Beam search over a tree of prefixes, by stock's rules."""
