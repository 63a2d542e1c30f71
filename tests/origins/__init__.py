"""Programs that record references from outside; README.md lists every reference and where it comes from."""
