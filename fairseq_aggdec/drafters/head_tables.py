"""What block heads expect behind a prefix, for the beam search that runs ahead (Stern et al., section 3, under a beam).

A head says of one place of the output what may stand there, whatever stands before: that is a table for every prefix
of that length behind the one that the heads have read. So the search can run ahead where nothing like its prefixes was
evaluated.
"""

from collections.abc import Sequence

from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.beam.rules import SentenceRules, Table
from fairseq_aggdec.search.beam.search import SentenceSearch
from fairseq_aggdec.search.beam.tables import best_tokens
from fairseq_aggdec.windows.draft import Proposing
from fairseq_aggdec.windows.transfer import rows_at, to_device
from fairseq_aggdec.windows.window import Said


class HeadTables:
    """Reads heads 2 to ``block_size`` behind the best hypothesis of every sentence.

    Args:
        block_size: heads that are read, at least 2.
        pad, unk: symbols of the target dictionary.
        proposing: how the heads are computed.
    """

    def __init__(self, block_size: int, pad: int, unk: int, proposing: Proposing):
        self.account, self.pad, self.unk, self.proposing = block_size, pad, unk, proposing

    def foretell(self, searches: Sequence[SentenceSearch], verifier: Verifier, said: Said) -> None:
        """Notes in every tree what the heads expect, after the verifier ``said`` of ``asked[-1]`` of each search."""
        read: list[tuple[SentenceSearch, int]] = []
        places, first, rows, chosen = [], 0, [], []
        for row, search in enumerate(searches):
            asked = search.asked[-1]
            # The best hypothesis has no table yet: the prefix before it has, often since this call.
            node = search.tree.parents[search.active[0][1]] if search.active else -1
            if not search.done and node in asked:
                read.append((search, node))
                rows.append(row)
                chosen.append(search.tree.tokens[search.active[0][1]])
                places.append(first + asked.index(node))
            first += len(asked)
        if not read:
            return
        features = said.features[0]  # (N, C)
        behind = rows_at(features, places)  # (R, C)
        _, logits = verifier.heads.propose(
            behind, self.account, self.proposing, to_device(chosen, features.device), rows
        )  # (R, k - 1, V)
        for (search, node), tables in zip(read, self._tables(read, logits), strict=True):
            search.tree.foretold[node] = tables

    def _tables(
        self, read: Sequence[tuple[SentenceSearch, int]], logits: Tensor
    ) -> list[list[Table]]:
        rules = read[0][0].rules
        heads, count = logits.size(1), min(rules.beam + 1, logits.size(2))
        wanted = to_device([rules.eos] * (len(read) * heads), logits.device)
        table = best_tokens(logits.flatten(0, 1).float(), count, wanted, self.pad, self.unk).cpu()
        rows = iter(table.tolist())  # of R * (k - 1) rows, see best_tokens
        return [
            [
                self._table(search.rules, search.tree.depths[node] + head, next(rows), count)
                for head in range(1, heads + 1)
            ]
            for search, node in read
        ]

    @staticmethod
    def _table(rules: SentenceRules, depth: int, row: Sequence[float], count: int) -> Table:
        tokens = [int(token) for token in row[count : 2 * count]]
        if row[0] != row[0]:  # NaN: broken heads expect nothing
            return ((), ())
        # What the caller forces has no chance that is known here; it is what follows anyway.
        given = depth < rules.limit and rules.forced(depth) is not None
        return rules.table(depth, tokens, row[:count], 0.0 if given else row[-1])
