"""The chance that a copied token is accepted, learned for every sentence and for all."""

from collections.abc import Sequence

from fairseq_aggdec.budget.fading import Fading

# What is believed before anything was seen, as if two tokens had been checked: most texts that are at hand are
# mostly right, and two tokens are soon outweighed where they are not.
PRIOR, PRIOR_WEIGHT = 0.975, 2.0
# How strongly a sentence is believed to be like the others, in tokens: a short sentence.
WEIGHT_OF_ALL = 10.0
# Tokens of all sentences that are remembered, some dozens of sentences: texts change.
MEMORY = 1000.0


class Chances:
    """Each token of a draft is accepted by chance, as long as those before it are; the chance depends on the sentence.

    Attributes:
        total: of all sentences. rows: of each that is left of the batch.
    """

    def __init__(self) -> None:
        self.total = Fading(1.0, PRIOR, PRIOR_WEIGHT)
        self.rows: list[Fading] = []
        self.unseen = True

    def start(self, rows: int) -> None:
        """Takes up a batch."""
        self.rows = [Fading(1.0) for _ in range(rows)]
        self.total.limit(MEMORY)

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learns from the drafts of the rows of the batch."""
        for row, proposed, stood in zip(self.rows, drafted, accepted, strict=True):
            if proposed:
                row.add(stood, stood + (stood < proposed))
        self.learn(drafted, accepted)

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learns from drafts of any rows."""
        for proposed, stood in zip(drafted, accepted, strict=True):
            if proposed:  # nothing was checked behind the first rejected token
                self.total.add(stood, stood + (stood < proposed))
                self.unseen = False

    @property
    def mean(self) -> float:
        """Of all sentences."""
        return self.total.mean

    def of(self, row: int) -> float:
        """Of a row's next draft."""
        return self.rows[row].mean_with(self.mean, WEIGHT_OF_ALL)

    def hope(self, row: int, length: int) -> float:
        """How many tokens of a draft of this length are expected to be accepted."""
        chance = self.of(row)
        return sum(chance**place for place in range(1, length + 1))

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
