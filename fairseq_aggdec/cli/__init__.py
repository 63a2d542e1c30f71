"""The commands: ``aggdec-generate`` and its relatives, and ``aggdec`` with the project's tools."""
