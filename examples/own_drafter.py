"""A drafter of your own: it proposes what followed the last token earlier in the output.

Verification decides what is kept, so the output is that of greedy search whatever a drafter proposes.
"""

import fairseq_aggdec
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft

FOLDER = "checkpoints/ua_gec"
TEXT = ["Я знаю що ти тут ."]


class RepeatDrafter(Drafter):
    """Drafts from the row's own output."""

    def draft(self, state: DecodeState) -> Draft:
        return Draft([self.again(row.tokens)[: row.end - row.position] for row in state.rows])

    def again(self, tokens: list[int]) -> list[int]:
        """What came after the last earlier occurrence of the last token; nothing where there is none."""
        *before, last = tokens
        if last not in before:
            return []
        return tokens[len(before) - before[::-1].index(last) :]


model = fairseq_aggdec.from_pretrained(
    f"{FOLDER}/checkpoint.pt", FOLDER, "greedy", spm=f"{FOLDER}/spm.model", device="cpu"
)
greedy = model.translate(TEXT)
model.generator.drafter = RepeatDrafter()
drafted = model.translate(TEXT)
print(*drafted)
print("as without drafts:", drafted == greedy)
