"""Checks that a model is exactly what its classes are, and unchanged since its weights were packed."""
