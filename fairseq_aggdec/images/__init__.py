"""Image super-resolution: its task, models and data."""
