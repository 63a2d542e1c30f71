"""Which files the data sets of the papers are made of, and how each is cut into subwords."""

from __future__ import annotations

from dataclasses import dataclass

SPLITS = ("train", "valid", "test")


class StepError(ValueError):
    """A message for the user of a recipe."""


@dataclass(frozen=True)
class Download:
    """A file in the folder RAW.

    Attributes:
        name: of the file.
        url: where it is; ``""`` if it cannot be had without asking.
        access: for one without ``url``, how to get it.
    """

    name: str
    url: str = ""
    access: str = ""


@dataclass(frozen=True)
class Corpus:
    """Parallel text.

    Attributes:
        members: pattern of the names of the two texts in their archive; ``*`` is any text, ``{}`` the language.
        downloads: an archive with both texts, or a file for each language, the source's first.
    """

    members: str
    downloads: tuple[Download, ...]


@dataclass(frozen=True)
class DataSet:
    """What a data set is made of and how it is cut into subwords.

    Attributes:
        source, target: languages.
        train, valid, test: what each split is put together from; nothing where sacreBLEU has it.
        valid_set, test_set: sacreBLEU's names; ``""`` where it does not have the split.
        held_out: every n-th pair of ``train`` is validation text, once the others are left out (0: none).
        validation: of these at most so many, evenly chosen; the others are left out (None: all).
        moses: normalise and tokenise; text that is tokenised already is left alone.
        lowercase: all text.
        kind: of sentencepiece model.
        vocabulary: pieces.
        max_length: pieces a training sentence has at most (0: any number); tokens with ``held_out``.
        max_ratio: of the lengths of a training pair (0: any ratio).
    """

    source: str
    target: str
    train: tuple[Corpus, ...]
    valid: tuple[Corpus, ...] = ()
    test: tuple[Corpus, ...] = ()
    valid_set: str = ""
    test_set: str = ""
    held_out: int = 0
    validation: int | None = None
    moses: bool = True
    lowercase: bool = False
    kind: str = "bpe"
    vocabulary: int = 32_000
    max_length: int = 250
    max_ratio: float = 1.5

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def corpora(self, split: str) -> tuple[Corpus, ...]:
        """Those of a split; a set of sacreBLEU's is a file for each language."""
        if self.sacrebleu_set(split):
            return (Corpus("", tuple(Download(f"{split}.{name}") for name in self.languages)),)
        found: tuple[Corpus, ...] = getattr(self, split)
        return found

    def sacrebleu_set(self, split: str) -> str:
        return {"valid": self.valid_set, "test": self.test_set}.get(split, "")


STATMT = "https://www.statmt.org"
DATA_STATMT = "https://data.statmt.org"
IWSLT = Download("de-en.tgz", "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def _archive(members: str, name: str, url: str, access: str = "") -> Corpus:
    return Corpus(members, (Download(name, url, access),))


def _wmt13(name: str, members: str) -> Corpus:
    file = f"training-parallel-{name}.tgz"
    return _archive(members, file, f"{STATMT}/wmt13/{file}")


def _news_9(members: str) -> Corpus:
    file = "training-parallel-nc-v9.tgz"
    return _archive(members, file, f"{STATMT}/wmt14/{file}")


def _multi30k(name: str) -> tuple[Corpus, ...]:
    folder = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    files = (f"{name}.{language}.gz" for language in ("en", "de"))
    return (Corpus("", tuple(Download(file, f"{folder}/{file}") for file in files)),)


def _aspec(name: str) -> tuple[Corpus, ...]:
    access = (
        "ASPEC, by agreement with JST: http://lotus.kuee.kyoto-u.ac.jp/ASPEC/, as prepared and tokenised for the "
        "Small NMT task: http://lotus.kuee.kyoto-u.ac.jp/WAT/WAT2017/snmt/index.html"
    )
    files = (Download(f"{name}.{language}", access=access) for language in ("en", "ja"))
    return (Corpus("", tuple(files)),)


SETS = {
    "wmt14-en-de": DataSet(
        "en",
        "de",
        train=(
            _wmt13("europarl-v7", "europarl-v7.de-en.{}"),
            _wmt13("commoncrawl", "commoncrawl.de-en.{}"),
            _news_9("news-commentary-v9.de-en.{}"),
        ),
        valid_set="wmt13",
        test_set="wmt14/full",
    ),
    "wmt14-en-fr": DataSet(
        "en",
        "fr",
        train=(
            _wmt13("europarl-v7", "europarl-v7.fr-en.{}"),
            _wmt13("commoncrawl", "commoncrawl.fr-en.{}"),
            _wmt13("un", "undoc.2000.fr-en.{}"),
            _news_9("news-commentary-v9.fr-en.{}"),
            _archive(
                "giga-fren.release2.fixed.{}.gz",
                "training-giga-fren.tar",
                f"{STATMT}/wmt10/training-giga-fren.tar",
            ),
        ),
        valid_set="wmt13",
        test_set="wmt14/full",
    ),
    "wmt16-en-ro": DataSet(
        "en",
        "ro",
        train=(
            _archive(
                "europarl-v8.ro-en.{}",
                "training-parallel-ep-v8.tgz",
                f"{DATA_STATMT}/wmt16/translation-task/training-parallel-ep-v8.tgz",
            ),
            _archive(
                "SETIMES*.en-ro.{}",
                "SETIMES-en-ro.txt.zip",
                "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",
            ),
        ),
        valid_set="wmt16/dev",
        test_set="wmt16",
    ),
    "wmt18-en-ru": DataSet(
        "en",
        "ru",
        train=(
            _wmt13("commoncrawl", "commoncrawl.ru-en.{}"),
            _archive(
                "news-commentary-v13.ru-en.{}",
                "training-parallel-nc-v13.tgz",
                f"{DATA_STATMT}/wmt18/translation-task/training-parallel-nc-v13.tgz",
            ),
            _archive(
                "paracrawl-release1.en-ru.zipporah0-dedup-clean.{}",
                "paracrawl-release1.en-ru.zipporah0-dedup-clean.tgz",
                "https://s3.amazonaws.com/web-language-models/paracrawl/release1/"
                "paracrawl-release1.en-ru.zipporah0-dedup-clean.tgz",
            ),
            _archive(
                "corpus.en_ru.1m.{}",
                "1mcorpus.zip",
                "",
                "Yandex corpus, after registration: https://translate.yandex.ru/corpus",
            ),
        ),
        valid_set="wmt17",
        test_set="wmt18",
        vocabulary=48_000,
    ),
    "wat17-en-ja": DataSet(
        "en",
        "ja",
        train=_aspec("train"),
        valid=_aspec("dev"),
        test=_aspec("test"),
        moses=False,
        max_ratio=0,  # characters of Japanese and of English are not comparable
    ),
    "iwslt14-de-en": DataSet(
        "de",
        "en",
        train=(Corpus("train.tags.de-en.{}", (IWSLT,)),),
        test=tuple(Corpus(f"IWSLT14.{name}.de-en.{{}}.xml", (IWSLT,)) for name in IWSLT_TESTS),
        held_out=23,
        validation=3000,
        lowercase=True,
        vocabulary=10_000,
        max_length=175,
    ),
    "multi30k-en-de": DataSet(
        "en",
        "de",
        train=_multi30k("train"),
        valid=_multi30k("val"),
        test=_multi30k("test_2016_flickr"),
        moses=False,
        kind="unigram",  # as multi30k.sh has it: both directions share their subwords
        vocabulary=8_000,
        max_length=0,
        max_ratio=0,
    ),
}
