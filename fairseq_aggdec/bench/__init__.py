"""Tells how fast is it: systems, rivals, timing."""
