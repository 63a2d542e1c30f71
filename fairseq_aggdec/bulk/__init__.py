"""Texts of any size: read whole, cut into shards, translated by any number of workers, joined.

``text.py`` reads and cuts files, ``translation.py`` translates a shard, ``command.py``
is ``aggdec-generate --input-file``. Claims and workers are those of :mod:`fairseq_aggdec.jobs`.
"""
