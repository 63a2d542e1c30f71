"""Options of one call of a Translator: the answer is stock fairseq's with the same options."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

import fairseq_aggdec
from fairseq_aggdec import Hypothesis, Translator
from fairseq_aggdec.api.calls import Call, generator_of_call
from fairseq_aggdec.api.text import Codec
from tests.equality.test_blockwise import headed
from tests.support import generation_options, make_model, make_task, random_sources

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
SENTENCES = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[1:7]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"beam": 1},
    {"beam": 3, "nbest": 3},
    {"max_len_b": 5},
    {"min_len": 20, "max_len_b": 25},
    {"prefix": "Це не"},
    {"prefix": ["Я", "", "Це не", "", "", "Я"]},
    {"attention": True, "nbest": 2},
    {"max_tokens": 40},
    {"source_lang": "src", "target_lang": "tgt"},
]


def load(decoding: str, **options: Any) -> Translator:
    options = {"spm": SHIPPED / "spm.model", "device": "cpu", "max_len_b": 40} | options
    return fairseq_aggdec.from_pretrained(
        SHIPPED / "checkpoint.pt", SHIPPED, decoding=decoding, **options
    )


@pytest.fixture(scope="module")
def stock() -> Translator:
    return load("stock")


@pytest.fixture(scope="module", params=["beam", "iad"])
def ours(request: pytest.FixtureRequest) -> Translator:
    return load(request.param, call_price="usual")  # no clock has a say in what tests count


@pytest.fixture(scope="module")
def beam() -> Translator:
    return load("beam")


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ranked, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in ranked] == [one.tokens for one in theirs]
        for one, other in zip(ranked, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)
            assert (one.attention is None) == (other.attention is None)
            if one.attention is not None and other.attention is not None:
                torch.testing.assert_close(one.attention, other.attention, atol=1e-4, rtol=0)
                assert one.attention.shape[0] == len(one.tokens) + 1


def greedy(translator: Translator) -> bool:
    return translator.decoding == "iad"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_of_a_call(ours: Translator, stock: Translator, options: dict[str, Any]) -> None:
    if greedy(ours) and ("nbest" in options or options == {}):
        options = {name: value for name, value in options.items() if name not in ("nbest", "beam")}
    asked = dict(options, beam=1) if greedy(ours) else options
    if "source_lang" in options:
        languages = dict(zip(("source_lang", "target_lang"), ours.languages, strict=True))
        options, asked = languages, asked | languages
    assert_same(ours.generate(SENTENCES, **options), stock.generate(SENTENCES, **asked))


def test_a_prefix_of_another_sentence_changes_nothing(ours: Translator) -> None:
    alone = ours.translate(SENTENCES)
    together = ours.translate(SENTENCES, prefix=["Я"] * 3 + [""] * 3, min_len=1)
    assert together[3:] == alone[3:] and all(line.startswith("Я") for line in together[:3])


def test_the_default_is_the_command_lines() -> None:
    model = fairseq_aggdec.from_pretrained(SHIPPED / "checkpoint.pt", SHIPPED, device="cpu")
    assert model.loaded.decoding == "beam" and model.loaded.beam == 5


def test_options_of_a_call_are_of_that_call_only(ours: Translator) -> None:
    expected = ours.translate(SENTENCES)
    ours.translate(SENTENCES[:2], max_len_b=3, beam=1, drafts=["Я", ""], prefix="Це")
    with pytest.raises(ValueError):
        ours.translate(SENTENCES, on_token=lambda *said: int("none"))
    assert ours.translate(SENTENCES) == expected


@pytest.mark.parametrize("decoding", ["beam", "iad", "stock"])
def test_a_call_changes_nothing_of_the_generator(decoding: str) -> None:
    """The calls of several threads have views of one generator, each with its own options."""
    translator = load(decoding)
    expected, generator = translator.translate(SENTENCES[:2]), translator.generator
    calls = [{"max_len_b": 3}, {"min_len": 12}, {"beam": 1 if decoding == "iad" else 2}]
    before = dict(vars(generator))
    views = [generator_of_call(generator, Call.of(call), None, None) for call in calls]
    found = [
        translator.task.inference_step(view, translator.models, next(samples(translator)))
        for view in [*views, generator]
    ]
    lengths = [[len(ranked[0]["tokens"]) for ranked in rows] for rows in found]
    assert max(lengths[0]) <= 4 and min(lengths[1]) > 12
    most = 1 if decoding == "iad" else 5
    assert [max(map(len, rows)) for rows in found] == [most, most, min(2, most), most]
    settings = before.keys() - {"engines", "options", "searches", "verifier"}
    assert all(vars(generator)[name] is before[name] for name in settings)
    assert translator.translate(SENTENCES[:2]) == expected


def samples(translator: Translator) -> Any:
    tokens = [translator.encode(text, number) for number, text in enumerate(SENTENCES[:2])]
    return (sample for sample, _ in translator._samples(tokens, None, None))


def test_calls_of_threads_have_options_of_their_own(ours: Translator) -> None:
    calls: list[dict[str, Any]] = [{}, {"max_len_b": 3}, {"min_len": 12}, {"prefix": "Я"}]
    calls += [{"drafts": SENTENCES}, {"on_token": lambda *said: None}]
    expected = [ours.translate(SENTENCES, **call) for call in calls]

    def work(call: dict[str, Any]) -> list[list[str]]:
        return [ours.translate(SENTENCES, batch_size=2, **call) for _ in range(2)]

    with ThreadPoolExecutor(len(calls)) as pool:
        assert list(pool.map(work, calls)) == [[lines] * 2 for lines in expected]


@pytest.mark.parametrize("wrong", [False, True])
def test_drafts_change_the_speed_only(ours: Translator, wrong: bool) -> None:
    expected = ours.generate(SENTENCES)
    outputs = [ranked[0].text for ranked in expected]
    drafts = outputs[::-1] if wrong else [*outputs[:5], ""]
    calls = ours.counters.calls
    found = ours.generate(SENTENCES, batch_size=1, drafts=drafts)
    assert_same(found, expected)
    if not wrong:
        before = sum(ranked[0].steps or 0 for ranked in expected[:5])
        assert sum(ranked[0].steps or 0 for ranked in found[:5]) < before
    assert ours.counters.calls > calls


def test_drafts_in_place_of_those_of_block_heads() -> None:
    model, lines = headed(), [" ".join(f"w{t - 4}" for t in row) for row in random_sources(3, 4)]
    translators = []
    for decoding in ("blockwise", "stock"):
        task, dictionary = make_task(decoding), model.decoder.dictionary
        assert len(task.target_dictionary) == len(dictionary)
        generator = task.build_generator([model], generation_options())
        translators.append(Translator(task, [model], generator, Codec()))
    blockwise, stock = translators
    expected = stock.generate(lines)
    assert_same(blockwise.generate(lines), expected)
    outputs = [ranked[0].text for ranked in expected]
    for drafts in (outputs, outputs[::-1]):
        assert_same(blockwise.generate(lines, drafts=drafts), expected)


@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_tokens_are_told_when_they_are_certain(
    ours: Translator, stock: Translator, kind: str
) -> None:
    model = ours if kind == "ours" else stock
    said: list[tuple[int, tuple[str, ...], str]] = []
    found = model.generate(SENTENCES, on_token=lambda *one: said.append(one))
    for number, ranked in enumerate(found):
        own = [(tokens, text) for place, tokens, text in said if place == number]
        assert tuple(token for tokens, _ in own for token in tokens) == ranked[0].tokens
        assert own[-1][1] == ranked[0].text
    several = len(said) > len(SENTENCES)
    assert several == (kind == "ours")


def test_scores_of_given_pairs(beam: Translator) -> None:
    outputs = beam.generate(SENTENCES)
    found = beam.score(SENTENCES, [ranked[0].text for ranked in outputs], 2, attention=True)
    scorer = SequenceScorer(beam.task.target_dictionary)
    for ranked, one, sentence in zip(outputs, found, SENTENCES, strict=True):
        assert one.text == ranked[0].text and one.tokens == ranked[0].tokens
        assert one.score == pytest.approx(ranked[0].score, abs=1e-4)
        source = beam.tokens(sentence)
        target = torch.tensor([*map(beam.task.target_dictionary.index, one.tokens), 2])
        sample = {
            "net_input": {
                "src_tokens": source[None],
                "src_lengths": torch.tensor([len(source)]),
                "prev_output_tokens": target.roll(1)[None],
            },
            "target": target[None],
        }
        ((theirs,),) = scorer.generate(beam.models, sample)
        assert one.token_scores == pytest.approx(theirs["positional_scores"].tolist(), abs=1e-4)
        assert one.attention is not None and one.attention.shape == (len(target), len(source))
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        beam.score(SENTENCES[:2], SENTENCES[:1])
    with pytest.raises(TypeError, match="target 0 is None of type NoneType, not a string"):
        beam.score(SENTENCES[:1], [None])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bem": 3}, TypeError, "a call has no option 'bem': did you mean beam"),
        ({"beam": 0}, ValueError, "beam=0: it must be a whole number of at least 1"),
        ({"beam": True}, ValueError, "beam=True: it must be a whole number"),
        ({"max_len_b": 1.5}, ValueError, "max_len_b=1.5: it must be a whole number"),
        ({"nbest": 9}, ValueError, "nbest=9: it must be 1 to beam, which is 5"),
        ({"beam": 5000}, ValueError, "beam=5000: it is too wide for a dictionary of"),
        ({"min_len": 80}, ValueError, "min_len=80: it must be at most max_len_b, which is 40"),
        ({"max_len_b": 0}, ValueError, "min_len=1: it must be at most max_len_b, which is 0"),
        ({"prefix": 5}, TypeError, "prefix=5: it must be a text, or one for each sentence"),
        ({"drafts": 5}, TypeError, "drafts=5: it must be a list with one text per sentence"),
        ({"attention": "no"}, TypeError, "attention='no': it must be True or False"),
        ({"on_token": "f"}, TypeError, "on_token='f': it must be a function"),
        ({"prefix": "a\ud800"}, ValueError, "prefix of sentence 0 is no Unicode text"),
        ({"drafts": ["a\ud800"] * 6}, ValueError, "drafts of sentence 0 is no Unicode text"),
        ({"prefix": [None] * 6}, ValueError, "sentence 0: prefix has nothing for it"),
        ({"prefix": [7] * 6}, ValueError, "sentence 0: prefix has a int for it"),
        ({"drafts": ["a"]}, ValueError, "sentence 1: drafts has nothing for it"),
        ({"drafts": ["a"] * 9}, ValueError, "drafts has more texts than the 6 sentences"),
        ({"drafts": "a"}, TypeError, "drafts='a': it must be a list with one text per sentence"),
        ({"source_lang": "de"}, ValueError, "source_lang='de': this model has"),
    ],
    ids=str,
)
def test_refusals(
    beam: Translator, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        beam.translate(SENTENCES, **options)


def test_what_a_method_cannot_do() -> None:
    with pytest.raises(ValueError, match='beam=2: decoding="iad" finds one hypothesis'):
        load("iad").translate(SENTENCES, beam=2)
    with pytest.raises(ValueError, match='drafts: decoding="stock" verifies no drafts'):
        load("stock").translate(SENTENCES, drafts=SENTENCES)


@pytest.mark.parametrize("decoding", ["beam", "iad"])
@pytest.mark.parametrize("int8", [False, True])
def test_forty_eight_of_forty_eight(decoding: str, int8: bool) -> None:
    """Four threads with options of their own."""
    model = load(decoding, int8=int8)
    calls: list[dict[str, Any]] = [{}, {"max_len_b": 6}, {"prefix": "Це"}, {"drafts": SENTENCES}]
    expected = [model.translate(SENTENCES, 2, **options) for options in calls]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: model.translate(SENTENCES, 2, **calls[i % 4]), range(8)))
    right = [a == b for i in range(8) for a, b in zip(found[i], expected[i % 4], strict=True)]
    assert sum(right) == len(right) == 48


def test_inside_inference_mode(beam: Translator) -> None:
    expected = beam.translate(SENTENCES)
    with torch.inference_mode():
        assert beam.translate(SENTENCES) == expected
        inside = load("beam")
        assert inside.translate(SENTENCES) == expected
        assert pickle.loads(pickle.dumps(inside)).translate(SENTENCES[:1]) == expected[:1]
    assert inside.translate(SENTENCES) == expected


def test_pickling_carries_the_arguments() -> None:
    model = load("iad", max_len_b=5)
    carried = pickle.dumps(model)
    assert len(carried) < 2000
    assert pickle.loads(carried).translate(SENTENCES) == model.translate(SENTENCES)
    with torch.no_grad():
        next(model.models[0].parameters()).mul_(1.0)
    with pytest.raises(TypeError, match="or have been changed since: load it in the other process"):
        pickle.dumps(model)


def _after_fork(model: Translator, threads: int, answers: Any) -> None:
    torch.set_num_threads(threads)
    try:
        answers.put(model.translate(SENTENCES[:1]))
    except RuntimeError as error:
        answers.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork(beam: Translator) -> None:
    expected = beam.translate(SENTENCES[:1])
    context = multiprocessing.get_context("fork")
    for threads in (1, 2):
        answers = context.Queue()
        process = context.Process(target=_after_fork, args=(beam, threads, answers))
        with beam.turn:  # as if another thread decoded meanwhile
            process.start()
        found = answers.get(timeout=60)
        process.join(60)
        if threads == 1:
            assert found == expected
        else:
            assert "this process was forked after the model was loaded" in found


@pytest.mark.parametrize("sentence", ["Сьогодні машина їде", "▁Я ▁не ▁знаю"])
def test_text_without_a_tokenization(sentence: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load("greedy", spm=None).translate([sentence])
    assert ("unknown to the model" in caplog.text) == ("▁" not in sentence)


def test_an_empty_text_is_empty(ours: Translator, stock: Translator) -> None:
    given = ["", SENTENCES[0], " \t", SENTENCES[1]]
    wanted = stock.translate(SENTENCES[:2], prefix=["Це", ""])
    assert ours.translate(given, prefix=["", "Це", "", ""]) == ["", wanted[0], "", wanted[1]]
    assert [len(ranked) for ranked in ours.generate(["", SENTENCES[0]])] == [1, 1]
    assert ours.translate([""]) == [""]
    (begun,) = ours.translate([""], prefix="Це не")
    assert begun.startswith("Це не")


@pytest.mark.parametrize("penalty", [-100.0, -100])
def test_unknown_pieces_are_written_or_dropped(penalty: float) -> None:
    found = {}
    for decoding, drop in (("stock", False), ("beam", False), ("beam", True)):
        task, generation = make_task(decoding), generation_options(beam=3, unkpen=penalty)
        models = [make_model(task, 5)]
        generator = task.build_generator(models, generation)
        one = Translator(task, models, generator, Codec(drop_unk=drop), generation=generation)
        (found[decoding, drop],) = one.translate(["w1 w2 w3 w4 w5"], prefix="w3")
    assert set(found["beam", False].split()) == {"w3", "<unk>"}
    assert found["beam", False] == found["stock", False]
    assert found["beam", True] == "w3"


def test_dropping_is_an_option_of_loading() -> None:
    assert load("greedy", drop_unk=True).codec.drop_unk
    with pytest.raises(ValueError, match="drop_unk='yes': it must be True or False"):
        load("greedy", drop_unk="yes")
