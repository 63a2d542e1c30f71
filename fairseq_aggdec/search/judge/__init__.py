"""Which drafted tokens are accepted and what each row emits: ``judge(logits, window, state, rules, accept)``.

``tensors.judge`` knows every acceptance rule. ``compiled.judge`` gives the same verdict in one call of the compiled
library, for the rules that the library has. On a GPU, ``on_device`` judges in PyTorch's operators and ``fused`` in
three kernels, both without waiting for the host.
"""
