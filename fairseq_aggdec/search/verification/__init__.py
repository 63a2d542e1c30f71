"""On the board: which drafted tokens are accepted and what each row emits, without waiting for the host.

``on_device`` verifies in PyTorch's operators and ``fused`` in three kernels of a GPU.
"""
