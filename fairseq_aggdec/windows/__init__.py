"""What a decoder is asked in one call: windows of new positions, trees, grids, their masks, and drafts."""
