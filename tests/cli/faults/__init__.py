"""The fault suite: what a user, a broken disk or an attacker may hand to a command, and what must come of it.

Every case is a command line with its outcome class:

- ``refused``: it ends, not with status 0, with one sentence that names the option or the file; nothing was decoded,
  nothing on the disk was changed, no code of a file ran;
- ``warned``: it does what was asked and says in one sentence what it found;
- ``works``: it does what was asked, right to the last token.

``python -m tests.cli.faults > docs/results/faults.md`` writes the list of them.
"""
