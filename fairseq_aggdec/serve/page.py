"""The page at ``/``: HTML that needs no other file."""

from pathlib import Path

import jinja2

from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.report.colours import variables
from fairseq_aggdec.serve.language_names import names_of

# All text that goes into the page is escaped; a name that it lacks is an error.
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)


def whole(translator: Translator, keys: bool) -> str:
    """The page; ``keys``: the service asks for a key."""
    source, target = translator.languages
    return TEMPLATES.get_template("page.html").render(
        light=variables(dark=False),
        dark=variables(dark=True),
        title="Translate",
        decoding=translator.loaded.decoding,
        beam=translator.loaded.beam,
        source=source,
        target=target,
        languages=names_of(translator.language_support.all or ()),
        keys=keys,
    )
