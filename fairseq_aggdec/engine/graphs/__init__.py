"""On a GPU: captured graphs of the window step and of the start of a batch, and the streams that they run on."""
