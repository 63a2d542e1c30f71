"""Questions to a decoder in one call: windows of new positions, trees, grids, their masks, and drafts."""
