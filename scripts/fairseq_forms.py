"""Records the forms of fairseq's functions that the package knows: fairseq_aggdec/startup/known_fairseq.json.

    scripts/fairseq_forms.py FOLDER...    folders that have `fairseq/`: checkouts, or site-packages

A form belongs there after the levels unit, equality and pipelines have passed with it (`scripts/matrix.sh`).
"""

import json
import sys
from pathlib import Path

from fairseq_aggdec.startup.known_fairseq import FORMS, READS, digest, functions, source


def main() -> None:
    files: dict[str, list[str]] = {}
    forms: dict[str, dict[str, list[str]]] = {}
    for module in dict.fromkeys(module for module, _, _ in READS):
        texts = [source(module, Path(folder)) for folder in sys.argv[1:]]
        found = [text for text in texts if text is not None]
        files[module] = sorted(set(map(digest, found)))
        known = forms.setdefault(module, {})
        for text in found:
            for name, form in functions(module, text).items():
                known[name] = sorted({*known.get(name, ()), form})
    text = json.dumps({"files": files, "functions": forms}, indent=1, sort_keys=True)
    FORMS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
