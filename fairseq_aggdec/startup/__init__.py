"""Steps taken when the package or fairseq is imported, and when a command begins."""
