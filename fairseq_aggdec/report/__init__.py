"""Pages and traces made of results."""
