"""Models by their names on the Hugging Face hub: huggingface_hub downloads them, once they are converted and packed.

What is made stands in ``~/.cache/fairseq_aggdec/models`` (``XDG_CACHE_HOME`` names another place for ``~/.cache``), one
folder for each state of a model and pair of languages. ``HF_HUB_OFFLINE=1`` and the hub's other variables are honoured.
"""

import os
from pathlib import Path

from fairseq_aggdec.convert import folder as folders
from fairseq_aggdec.convert.checkpoint import convert
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.convert.vocabulary import languages
from fairseq_aggdec.startup import installing

# Configuration, tokenizer: nothing of it is run. Weights come by one name of folders.WEIGHTS, the first that is there.
FILES = ["*.json", "*.model", "*.spm", "*.txt"]


def fetched(name: str) -> Path:
    """The folder of a model of the hub, downloaded unless the hub's cache has it.

    Raises:
        ValueError: there is no such model, it needs permission, or the hub cannot be reached and the cache lacks it.
        SystemExit: huggingface_hub is not installed.
    """
    installing.need(f"the model {name} of the hub", "convert", "huggingface_hub", "transformers")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        for weights in folders.WEIGHTS:
            folder = Path(snapshot_download(name, allow_patterns=[*FILES, weights]))
            if (folder / weights).exists():
                return folder
    except GatedRepoError:
        raise ValueError(
            f"{name}: the hub gives this model only to those who accepted its terms: do so on its page, then log in "
            "with `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise ValueError(f"{name}: there is no file and no model of the hub of this name") from None
    except (LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename:
            raise  # the disk: the message names the file
        raise ValueError(
            f"{name}: the hub cannot be reached, and its cache does not have this model; on a machine that reaches "
            f"it: `hf download {name}`"
        ) from None
    raise ValueError(f"{name}: the model has neither {' nor '.join(folders.WEIGHTS)}")


def packed(name: str, kind: str, source: str | None, target: str | None) -> Path:
    """The packed folder of a model of the hub, made on the first call.

    Args:
        name: of the model. kind: ``fp32``, ``int8`` or ``bf16``.
        source, target: languages by the model's own codes; None: its tokenizer's own, or its first two.

    Raises:
        ValueError, SystemExit: it cannot be fetched, converted or packed; nothing is left behind.
    """
    published = fetched(name)
    # Languages that nobody named have no part in the folder's name: to find them takes transformers, seconds.
    pair = "" if source is target is None else f"-{source or 'own'}-{target or 'own'}"
    made = cache() / name.replace("/", "--") / f"{published.name[:12]}{pair}"
    if not made.exists():
        if source is None or target is None:
            source, target = _usual_pair(published, source, target)
        convert(published, made, source, target)
    if not (made / kind).exists():
        pack(made / "model.pt", made, made / kind, kind)
    return made / kind


def cache() -> Path:
    """The folder in which converted models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairseq_aggdec/models")


def _usual_pair(
    published: Path, source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Fills in the languages of a multilingual model, of which every request may name others."""
    folder = folders.read(published)
    codes = languages(folder)
    if not codes:
        return source, target
    language = getattr(folder.tokenizer, "src_lang", None)
    source = source or (language if language in codes and language != target else None)
    source = source or next(code for code in codes if code != target)
    return source, target or next(code for code in codes if code != source)
