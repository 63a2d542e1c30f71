"""Parts that several methods share: amounts to draft, texts to copy, drafters to load, tables of candidates."""
