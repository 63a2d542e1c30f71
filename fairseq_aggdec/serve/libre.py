"""LibreTranslate's ``/translate`` and ``/languages``, whose clients need no change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_aggdec.serve.guard import Refused


@dataclass(frozen=True)
class TranslateRequest:
    """A request to ``/translate``.

    Attributes:
        texts: what to translate. several: whether it came as a list.
        alternatives: other outputs that are wanted of each.
        detected: the source language was to be found out.
        spoken: the languages of the call, where they are not the translator's own.
    """

    texts: Sequence[str]
    several: bool
    source: str
    alternatives: int
    detected: bool
    api_key: object
    spoken: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        """The lines of all texts: each is a sentence to the model, and empty ones stay as they are."""
        return [line for text in self.texts for line in text.split("\n")]

    def options(self, beam: int) -> dict[str, Any]:
        """Options of the call; ``beam`` is the translator's own, widened where more outputs are wanted."""
        if not self.alternatives:
            return {"nbest": 1} | self.spoken
        nbest = self.alternatives + 1
        return {"nbest": nbest} | self.spoken | ({"beam": nbest} if nbest > beam else {})

    def answer(self, nbest: Sequence[Sequence[str]]) -> dict[str, Any]:
        """The JSON for n-best lists of the lines that are not empty."""
        ranked = iter(nbest)
        outputs = [
            [next(ranked) if line.strip() else [line] for line in text.split("\n")]
            for text in self.texts
        ]
        best = ["\n".join(line[0] for line in lines) for lines in outputs]
        made: dict[str, Any] = {"translatedText": best if self.several else best[0]}
        if self.alternatives:
            others = [
                [
                    "\n".join(line[min(rank, len(line) - 1)] for line in lines)
                    for rank in range(1, max(map(len, lines)))
                ]
                for lines in outputs
            ]
            made["alternatives"] = others if self.several else others[0]
        if self.detected:
            language = {"language": self.source, "confidence": 0}  # the only one there is
            made["detectedLanguage"] = [language] * len(best) if self.several else language
        return made


def read(
    body: dict[str, Any], pair: tuple[str, str], several: Sequence[str] | None = None
) -> TranslateRequest:
    """The request of a body; ``Refused`` (400) in LibreTranslate's words where it has some.

    Args:
        pair: the translator's own languages. several: those that a call may ask for; None: its own only.
    """
    for name in ("q", "source", "target"):
        if not body.get(name):
            raise Refused(400, f"Invalid request: missing {name} parameter")
    q, source, target = (body[name] for name in ("q", "source", "target"))
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "Invalid request: q must be a string or a list of strings")
    if body.get("format", "text") != "text":
        raise Refused(400, f"{body['format']} format is not supported")
    more = tuple(several or ())
    for language, codes in ((source, (pair[0], "auto", *more)), (target, (pair[1], *more))):
        if language not in codes:
            raise Refused(400, f"{language} is not supported")
    if source == "auto" and len(more) > 1:
        raise Refused(400, f"auto is not supported: this model reads {', '.join(more)}")
    own_source = pair[0] if source == "auto" else source
    differ = (own_source, target) != pair
    return TranslateRequest(
        texts,
        isinstance(q, list),
        own_source,
        _alternatives(body.get("alternatives", 0)),
        source == "auto",
        body.get("api_key"),
        {"source_lang": own_source, "target_lang": target} if differ else {},
    )


def _alternatives(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= 100 or isinstance(value, bool):
        raise Refused(400, "Invalid request: alternatives must be a number from 0 to 100")
    return number
