"""Models of the plugin."""
