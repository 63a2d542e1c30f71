"""What the server of multiprocessing imports once for all processes that tests start through it."""

import fairseq_cli.generate
import fairseq_cli.train  # noqa: F401

import fairseq_aggdec.api.session
import fairseq_aggdec.bulk.command  # noqa: F401
from tests import quick_hydra

quick_hydra.quicken()
quick_hydra.prepare("translation_aggdec")
