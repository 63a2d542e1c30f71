"""Is it the same: audits of outputs against stock fairseq."""
