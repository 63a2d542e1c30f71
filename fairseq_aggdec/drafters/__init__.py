"""Drafters: whatever proposes the tokens that the verifier checks."""
