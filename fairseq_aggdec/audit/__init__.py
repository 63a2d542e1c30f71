"""Audits of outputs against stock fairseq."""
