"""The commands: ``aggdec-generate`` and its relatives, and ``aggdec`` with the project's tools.

They log as fairseq's own commands do: ``import fairseq`` may set up the root logger.
"""

from fairseq_aggdec.startup import after_fairseq, waiting

after_fairseq.may_set_up_root_logger = True
waiting.set_up_threads()  # before a command loads PyTorch
