"""The page at ``/``."""

from __future__ import annotations

from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.report.pages import templates


def whole(translator: Translator, keys: bool) -> str:
    """The page as HTML, which loads nothing else; ``keys``: the service asks for a key."""
    source, target = translator.languages
    page = templates().get_template("serve.html")
    return page.render(
        title="Translate",
        decoding=translator.own.decoding,
        beam=translator.own.beam,
        source=source,
        target=target,
        languages=list(translator.language_support.all or ()),
        keys=keys,
    )
