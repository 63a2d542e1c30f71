"""The decoding options, read once: old names, variants of papers and texts become settings that methods use."""
