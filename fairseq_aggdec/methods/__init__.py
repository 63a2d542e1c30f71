"""Methods: what each --decoding reads, refuses and builds: options, drafters, generators."""
