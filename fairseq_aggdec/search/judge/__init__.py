"""What the verifier accepts of a draft: three judges of one signature, ``judge(logits, asked, rules, accept)``.

``tensors`` knows every rule of acceptance. ``host`` is for exact acceptance of drafts that the host knows, and
``compiled`` decides in one call of the compiled library what it can. Where two can judge, both give the same verdict.
On a GPU that goes on without the host ``on_device`` and ``fused`` do the bookkeeping of an iteration; they are twins.
"""
