"""Compiled products, attention and whole layers for CPU: optional, everything runs without them, slower.

The library has a plain C interface and knows neither Python nor PyTorch; ``source/`` holds its C++. ``setup.py`` builds
it once for every set of instructions that the compiler knows; :func:`~fairseq_aggdec.kernels.library.kernels` takes the
best that this processor has.
"""
