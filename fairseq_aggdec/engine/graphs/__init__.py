"""On a GPU: captured graphs of the window step, and the streams that they run on."""
