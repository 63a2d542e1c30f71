"""The cached decoder, the loop and the generators."""
