"""How fast is it: systems, rivals, timing."""
