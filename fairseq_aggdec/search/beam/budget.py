"""Knowledge that a generator gains about prefixes that are evaluated before beam search asks for them.

``kernels/source/search/beam_budget.h`` plans with these numbers, and learns them; here is what is believed at first.
"""

from fairseq_aggdec.budget.price import CallPrice
from fairseq_aggdec.search.compiled.searches import BudgetStruct, MeanStruct

# Cost of a call of beam search, beside its prefixes, in prefixes, where it was not timed.
# cpu: 4 to 7 in the compiled library with a decoder of width 256, twice that at base size.
# cuda: 0.9 ms on an H200, where a prefix costs the device nothing but the host some 20 us.
USUAL_OF_SEARCH = {"cpu": 6.0, "cuda": 40.0}
# Prefixes per sentence and call at most: what is predicted far ahead is seldom right.
MOST = {"cpu": 80, "cuda": 256}
# How many times its cost a call with a search ahead over prefixes that are alike must save, on the mean. It saves the
# plain calls that would take the search on by as many tokens.
# CPU: the cost includes the prefixes of the call; the rest is the time of the search ahead.
# CUDA: the cost is 1, so the gain is in tokens. A call took 1.5 times as long with what the search ahead asks for on an
# H200, its wider windows and their graphs included.
LEAST_GAIN = {"cpu": 1.15, "cuda": 1.5}
# Chances of prefixes: of the text that a sentence begins with; of a token of a text behind a copied one; of those that
# the search ahead reads over tables of prefixes that are alike, by nats behind the best hypothesis (0 to 1, ...).
TEXT, PIECE = 0.5, 0.9
ALIKE = (0.8, 0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1)
# What a search ahead gains: of few sentences much, while nothing is known; in larger batches it is watched before it is
# believed, as a call of many prefixes takes long there. FEW: bits of the number of sentences.
GAIN_OF_FEW, FEW = 2.0, 2
# Weight of these, in prefixes and in calls of a sentence.
PRIOR_WEIGHT, GAIN_WEIGHT = 10.0, 5.0
# Where a text is no good, it is looked at in one batch out of this many.
LOOK_AGAIN = 32


class Budget(BudgetStruct):
    """Numbers of a generator.

    Args:
        by: what decodes: a key of :data:`USUAL_OF_SEARCH`, or another device.
        price: what calls cost; None: as usual.

    Attributes:
        batches: begun so far.
    """

    def __init__(self, by: str, price: CallPrice | None = None):
        by = by if by in USUAL_OF_SEARCH else "cuda"
        kind = "cuda" if by == "cuda" else "cpu"
        super().__init__(USUAL_OF_SEARCH[by], LEAST_GAIN[kind], MOST[kind])
        self.price = price
        self.prefixes_count = kind == "cpu"
        self.text, self.piece = _believed(TEXT), _believed(PIECE)
        self.alike[:] = [_believed(chance) for chance in ALIKE]
        self.gains[:] = [
            _believed(GAIN_OF_FEW if bits <= FEW else 1.0, GAIN_WEIGHT) for bits in range(64)
        ]

    def weigh(self, sentences: int, beam: int) -> None:
        """Takes the price of a call of a batch where its plain prefixes stand: it falls with them.

        By ``--call-price 1:0.7402,4:0.9733,8:1.397,16:2.66`` it is worth 6.1 prefixes at 5 and 2.6 at 8.
        """
        if self.price is not None:
            self.call_cost = self.price.beside(sentences * beam)

    def wants_texts(self, sentences: int, beam: int) -> bool:
        """Tells whether the next batch may draft from texts, or is to find out whether it could."""
        least = 1.0 / (1.0 + self.call_cost / (sentences * beam))
        chance = max(mean.sum / mean.weight for mean in (self.text, self.piece))
        return bool(chance >= least or self.batches % LOOK_AGAIN == 0)


def _believed(mean: float, weight: float = PRIOR_WEIGHT) -> MeanStruct:
    return MeanStruct(mean * weight, weight)
