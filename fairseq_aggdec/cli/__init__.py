"""The commands: ``aggdec-generate`` and its relatives, and ``aggdec`` with the project's tools.

They log as fairseq's own commands do: ``import fairseq`` may set up the root logger.
"""

import argparse

from fairseq_aggdec import after_fairseq

after_fairseq.may_set_up_root_logger = True


def tool_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``aggdec NAME``, whose description is shown as it is written."""
    return argparse.ArgumentParser(
        prog=f"aggdec {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
