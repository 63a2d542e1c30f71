"""Threads: a second one that enters a generator gets an error; a Translator lets them take turns."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fairseq_aggdec
from fairseq_aggdec import Translator
from fairseq_aggdec.methods import gad as gad_method
from tests.equality.test_blockwise import headed
from tests.equality.test_gad import drafter
from tests.equality.test_interleaved import lively
from tests.equality.test_lattice import lattice_model
from tests.random_models import random_tables
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
SENTENCES = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[:12]
THREADS = 4


def plain() -> Any:
    return make_model(make_task(), 5)


# Each generator class of the plugin, with the options that build it.
GENERATORS: dict[str, tuple[str, Callable[[], Any], dict[str, Any]]] = {
    "greedy": ("greedy", plain, {}),
    "iad": ("iad", plain, {}),
    "blockwise": ("blockwise", headed, {}),
    "beam": ("beam", plain, {"beam": 3}),
    "aligned": ("greedy", plain, {"print_alignment": "hard"}),
    "aligned beam": ("beam", plain, {"beam": 3, "print_alignment": "hard"}),
    "interleaved": ("interleaved", lambda: lively(2, 2), {"beam": 3}),
    "lattice": ("lattice", lattice_model, {}),
    "drafter alone": ("nar", plain, {}),
}


@pytest.fixture(scope="module")
def lattice_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, task = tmp_path_factory.mktemp("tables") / "lattice", make_task()
    random_tables().save(path, task.source_dictionary, task.target_dictionary, {})
    return str(path)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_second_thread_gets_an_error(
    name: str, lattice_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, make, options = GENERATORS[name]
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter())
    model, sample = make(), make_batch(random_sources(3, 4))
    task = make_task(decoding, lattice=lattice_folder, drafter_path="drafter.pt")
    generator = task.build_generator([model], generation_options(**options))
    expected = [ranked[0] for ranked in generator.generate([model], sample)]
    said: list[str] = []
    read = generator.counters.read

    def second() -> None:
        try:
            generator.generate([model], sample)
        except RuntimeError as error:
            said.append(str(error))

    def interrupted() -> float:
        """The clock that every generator reads on its way: here a second thread comes, in the middle of a batch."""
        if not said:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        return read()

    monkeypatch.setattr(generator.counters, "read", interrupted)
    found = [ranked[0] for ranked in generator.generate([model], sample)]
    assert len(said) == 1 and "is decoding a batch already" in said[0]
    assert_same(found, expected)
    # It is free again, and so is a copy that is made meanwhile.
    said.append("the second thread does not come again")
    assert_same([ranked[0] for ranked in generator.generate([model], sample)], expected)


@pytest.mark.parametrize("name", [*GENERATORS, "gad"])
def test_a_copy_of_a_generator_that_has_decoded(
    name: str, lattice_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed weights and searches of the library have addresses that no copy can have."""
    decoding, make, options = GENERATORS.get(name, (name, plain, {}))
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter())
    model, sample = make(), make_batch(random_sources(3, 4))
    task = make_task(decoding, lattice=lattice_folder, drafter_path="drafter.pt")
    generator = task.build_generator([model], generation_options(**options))
    expected = [ranked[0] for ranked in generator.generate([model], sample)]
    for copied in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert_same([ranked[0] for ranked in copied.generate([], sample)], expected)
        assert next(copied.model.parameters()) is not next(generator.model.parameters())


def test_an_error_leaves_the_generator_free_and_a_copy_is_free() -> None:
    model, sample = plain(), make_batch(random_sources(3, 2))
    generator = make_task("greedy").build_generator([model], generation_options())
    with pytest.raises(ValueError, match="--constraints"):
        generator.generate([model], sample, constraints=sample["net_input"]["src_tokens"])
    generator.generate([model], sample)
    guard = generator.__dict__["_one_thread"]
    with guard, copy.deepcopy(guard):
        pass


def test_a_hook_that_comes_back_gets_an_error() -> None:
    translator = load("greedy", 1)
    said: list[str] = []

    def come_back(module: Any, inputs: Any, output: Any) -> None:
        hook.remove()
        with pytest.raises(RuntimeError, match="a hook of its model cannot use it") as error:
            translator.translate(["Це добре ."])
        said.append(str(error.value))

    layer = translator.models[0].decoder.layers[0].fc1
    hook = layer.register_forward_hook(come_back)
    # In a thread of its own: waiting for oneself never ends.
    thread = threading.Thread(target=translator.translate, args=(["Це добре ."],), daemon=True)
    thread.start()
    thread.join(60)
    assert said and not thread.is_alive()
    assert translator.translate(["Це добре ."]) == ["Це добре ."]


def load(decoding: str, beam: int, **options: Any) -> Translator:
    model = SHIPPED / "checkpoint.pt"
    options |= {"spm": SHIPPED / "spm.model", "device": "cpu", "max_len_b": 40}
    return fairseq_aggdec.from_pretrained(
        str(model), SHIPPED, decoding=decoding, beam=beam, **options
    )


@pytest.mark.parametrize(
    ("decoding", "beam", "options"),
    [
        ("beam", 4, {}),
        ("greedy", 1, {}),
        ("iad", 1, {}),
        ("iad", 1, {"int8": True}),
        ("stock", 1, {}),
    ],
    ids=lambda value: str(value),
)
def test_threads_share_a_translator(decoding: str, beam: int, options: dict[str, Any]) -> None:
    translator = load(decoding, beam, **options)
    parts = [SENTENCES[i::THREADS] for i in range(THREADS)]
    expected = [translator.translate(part, batch_size=2) for part in parts]
    times = 1 if decoding == "stock" else 3

    def work(part: list[str]) -> list[list[str]]:
        return [translator.translate(part, batch_size=2) for _ in range(times)]

    async def handlers() -> list[list[str]]:
        calls = [asyncio.to_thread(translator.translate, part, batch_size=2) for part in parts]
        return await asyncio.gather(*calls)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, parts)) == [[lines] * times for lines in expected]
    assert asyncio.run(handlers()) == expected
    if decoding != "stock":
        assert translator.counters.sentences == len(SENTENCES) * (times + 2)


def test_translators_in_threads_do_not_wait_for_each_other() -> None:
    """Two calls of the compiled library at the same time: each thread has its own scratch memory."""
    pair = [load("beam", 4), load("iad", 1, int8=True)]
    expected = [translator.translate(SENTENCES, batch_size=3) for translator in pair]
    together = threading.Barrier(2, timeout=60)

    def work(translator: Translator) -> list[list[str]]:
        together.wait()
        return [translator.translate(SENTENCES, batch_size=3) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, pair)) == [[lines] * 3 for lines in expected]
