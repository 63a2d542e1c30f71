"""Bulk work on any number of machines: shards in a shared folder, claimed, made and put in place one by one.

``claims.py`` says who works on what, ``job.py`` does the work, ``workers.py`` starts it; ``text.py`` reads and cuts
texts, ``translation.py`` translates them. Distillation uses the first three.
"""
