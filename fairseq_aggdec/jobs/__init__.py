"""Shards in a shared folder, claimed, made and put in place by any number of workers on any number of machines.

``claims.py`` says who works on what, ``job.py`` does the work, ``workers.py`` starts it. Translation of texts and
distillation use them.
"""
