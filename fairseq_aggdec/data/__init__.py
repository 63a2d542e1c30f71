"""Data of the plugin."""
