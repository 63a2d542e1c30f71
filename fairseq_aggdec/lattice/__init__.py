"""Sequence-to-lattice translation (Deng and Rush 2021): the parts that need no network.

From training pairs to tables, once (``aggdec lattice-tables``):

    alignment.corpus           sentence pairs of a binarised data folder, many at a time
    alignment.word_alignment   which source token each target token comes from: fast_align's model
                               (estimation), in both directions
    counting         links -> counts of (source token, offset, target token) and of positions -> tables
    tables           the folder beside the data in which they are kept, memory-mapped
    building         all of this in order; chooses the weights of interpolation

From a batch of sources to translations:

    length           a straight line gives the window of target lengths
    candidates       tables -> a few candidate tokens at every target position
    lattice          the candidates of a batch with their masks: what a scorer reads and gives edge scores to
    viterbi          the best paths

A neural scorer computes P(y_t | y_{t-1}, t, x) for the candidates of a :class:`~fairseq_aggdec.lattice.lattice.Lattice`
and hands the scores back to its ``search``.
"""
