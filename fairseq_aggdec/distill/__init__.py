"""Distillation: what a teacher writes as the targets of a data folder, and drafters that learn from it."""
