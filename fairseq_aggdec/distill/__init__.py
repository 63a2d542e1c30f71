"""Replacing the targets of a data folder by what a teacher writes."""
