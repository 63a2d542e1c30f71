"""``--eval-acceptance``: what a drafter that is being trained would gain, measured by decoding with the verifier."""

from typing import Any

from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.methods.shared.loading import load_verifier
from fairseq_aggdec.search.acceptance import exact
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator

# --max-len-a and --max-len-b, longer than almost every output: those that would not end take no long time.
LONGEST = 2.0, 20


class AcceptanceProbe:
    """Decodes the first sentences of a set with draft and verify and counts.

    No ``nn.Module``, so that the verifier's parameters are not taken for those of the criterion that holds it.

    Args:
        path: checkpoint of the verifier.
        sentences: those with smaller numbers in their set are decoded.
        task: has the dictionaries.
    """

    def __init__(self, path: str, sentences: int, task: Any):
        if sentences < 1:
            raise ValueError(
                f"--eval-acceptance-sentences {sentences}: there is at least one sentence"
            )
        self.verifier = load_verifier(path, task, "--eval-acceptance")
        self.sentences, self.dictionary = sentences, task.target_dictionary
        self.drafter: Any = None

    def decode(self, drafter: Any, sample: dict[str, Any]) -> list[float]:
        """Tokens per iteration (``</s>`` included) of each sentence of a batch that is to be decoded.

        All count alike: in a total, one that the verifier repeats itself in to its limit would outweigh dozens.
        """
        chosen = (sample["id"] < self.sentences).nonzero().squeeze(1)
        if len(chosen) == 0:
            return []
        net_input = {
            name: sample["net_input"][name][chosen] for name in ("src_tokens", "src_lengths")
        }
        if self.drafter is not drafter:
            self._prepare(drafter)
        generator = self.generator
        nbest = generator.generate([self.verifier], {"net_input": net_input})
        return [len(best["tokens"]) / best["steps"] for best, *_ in nbest]

    def _prepare(self, drafter: Any) -> None:
        self.drafter = drafter
        self.verifier.to(drafter.decoder.mask_embedding)  # device and precision
        self.generator = DraftAndVerifyGenerator(
            [self.verifier],
            self.dictionary,
            drafter=NarDrafter(drafter),
            accept=exact,
            counters=Counters(),
            max_len_a=LONGEST[0],
            max_len_b=LONGEST[1],
        )
