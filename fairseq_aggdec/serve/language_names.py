"""Names of languages for people, of the codes that models have: ``de``, ``de_DE``, ``deu_Latn``."""

import re
from collections import Counter
from collections.abc import Iterable

import langcodes

# Three letters alone may be any suffix of a data folder: "src" and "tgt" are codes of languages, too.
CODE = re.compile(r"[a-z]{2}(_[A-Z]{2})?|[a-z]{3}_[A-Z][a-z]{3}")


def names_of(codes: Iterable[str]) -> dict[str, str]:
    """The English name of each code; the code itself where it is no code of a language.

    Languages of one name, such as ``zho_Hans`` and ``zho_Hant``, have their code behind it.
    """
    names = {code: _name(code) for code in codes}
    count = Counter(names.values())
    return {
        code: name if count[name] == 1 or name == code else f"{name} ({code})"
        for code, name in names.items()
    }


def _name(code: str) -> str:
    if not CODE.fullmatch(code):
        return code
    language = langcodes.Language.get(code)
    return language.language_name() if language.is_valid() or "_" in code else code
