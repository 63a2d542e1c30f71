"""Pages, plots and tables made of results."""

import logging

# fairseq sets the root logger to DEBUG; at that level matplotlib fills pages.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
