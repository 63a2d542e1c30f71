"""Tells how many tokens to draft: what calls cost, what drafts gain, and the decision made of both."""
