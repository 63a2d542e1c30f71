"""The HTTP service: requests in, batches through one translator, answers and pages out."""
