"""The commands: ``aggdec-generate`` and its relatives, and ``aggdec`` with the project's tools.

They log as fairseq's own commands do: ``import fairseq`` may set up the root logger.
"""

from fairseq_aggdec import after_fairseq

after_fairseq.may_set_up_root_logger = True
