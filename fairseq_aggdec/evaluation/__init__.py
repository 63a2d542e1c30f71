"""Evaluation of the plugin."""
