"""Tables of what block heads expect behind a prefix, for the beam search that runs ahead (Stern et al., section 3,
under a beam).

A head says of one place of the output what may stand there, whatever stands before: that is a table for every prefix
of that length behind the one that the heads have read. So the search can run ahead where nothing like its prefixes was
evaluated.
"""

from collections.abc import Sequence

from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.options import Options
from fairseq_aggdec.search.beam.tables import best_tokens
from fairseq_aggdec.windows.draft import Proposing
from fairseq_aggdec.windows.transfer import rows_at, to_device
from fairseq_aggdec.windows.window import DecoderOutput


class HeadTables:
    """Reads heads 2 to ``block_size`` behind the best hypothesis of every sentence.

    Args:
        block_size: heads that are read, at least 2.
        proposing: how the heads are computed.
    """

    def __init__(self, block_size: int, proposing: Proposing):
        self.block_size, self.proposing = block_size, proposing

    def tables(
        self,
        verifier: Verifier,
        places: Sequence[int],
        rows: Sequence[int],
        tokens: Sequence[int],
        output: DecoderOutput,
        options: Options,
    ) -> Tensor:
        """(R, k - 1, 2 count + 1), on the host: what the heads expect 1 to k - 1 tokens behind what follows each place.

        Args:
            verifier: has the heads. output: of the verifier for the window.
            places: of the window. rows: of the batch as the window has it.
            tokens: the best token behind each place, which a chain of heads hears.
            options: generation options.
        """
        features = output.features[0]  # (N, C)
        _, logits = verifier.heads.propose(
            rows_at(features, places),
            self.block_size,
            self.proposing,
            to_device(tokens, features.device),
            rows,
        )  # (R, k - 1, V)
        count = min(options.beam_size + 1, logits.size(2))
        wanted = to_device([options.eos] * (len(rows) * logits.size(1)), logits.device)
        table = best_tokens(logits.flatten(0, 1).float(), count, wanted, options.pad, options.unk)
        return table.unflatten(0, (len(rows), -1)).cpu()
