"""Who asks for the plugin, and how: by user-dirs, commands of ours and ``adopt()``; and who does not."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq import checkpoint_utils, search
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import TASK_REGISTRY, setup_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import fairseq_aggdec
from fairseq_aggdec.cli import fairseq_commands
from fairseq_aggdec.pipelines import takeover
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from fairseq_aggdec.tasks.decoding_task import DecodingTask
from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    assert_equal,
    assert_same,
    counted,
    decode,
    forgotten,
    ours,
    sentences,
    stock,
    write_model,
    write_text,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("translation")
    data = write_text(folder, ["de", "en"])
    model = write_model(
        folder / "model.pt", data, "translation", "transformer", "-s", "de", "-t", "en", *SIZES
    )
    return data, model


def command(written: tuple[Path, Path], task: str = "translation") -> list[Any]:
    data, model = written
    return [data, "--path", model, *BATCHES, *SEARCH, "--task", task, "-s", "de", "-t", "en"]


def hub(written: tuple[Path, Path], **options: Any) -> Any:
    data, model = written
    return TransformerModel.from_pretrained(str(model.parent), model.name, str(data), **options)


def test_an_import_alone_changes_no_task(written: tuple[Path, Path]) -> None:
    config = TranslationConfig(data=str(written[0]), source_lang="de", target_lang="en")
    config._name = "translation"
    with forgotten():
        task = setup_task(Namespace(**vars(config), task="translation"))
        assert type(task) is TranslationTask
        with counted() as taken:
            hub(written).translate(sentences()[:2])
        assert not taken
        fairseq_aggdec.adopt()
        task = setup_task(Namespace(**vars(config), task="translation"))
        assert type(task) is not TranslationTask and isinstance(task, TranslationTask)


def test_the_commands_take_over_tasks_of_another_user_dir(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    own = tmp_path / "tasks_of_ones_own"
    own.mkdir()
    (own / "__init__.py").write_text(
        "from fairseq.tasks import register_task\n"
        "from fairseq.tasks.translation import TranslationTask, TranslationConfig\n"
        "@register_task('of_ones_own', dataclass=TranslationConfig)\n"
        "class OfOnesOwn(TranslationTask):\n"
        "    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):\n"
        "        prefix = sample['target'][:, :1]\n"
        "        return generator.generate(models, sample, prefix_tokens=prefix, bos_token=5)\n"
    )
    arguments = command(written, "of_ones_own")

    def ours_own() -> None:
        assert fairseq_commands.generate() == 0

    with forgotten():
        found = decode(*arguments, "--user-dir", own, command=ours_own)
    assert found.batches and not found.left()
    expected = stock(*arguments, "--user-dir", own)
    assert_same(found, expected)
    # Joined: one folder that imports both.
    joined = tmp_path / "joined"
    joined.mkdir()
    (joined / "__init__.py").write_text(
        f"import {own.name}\nimport fairseq_aggdec\nfairseq_aggdec.adopt()\n"
    )
    with forgotten():
        both = decode(*arguments, "--user-dir", joined)
    assert both.batches and not both.left()
    assert_same(both, expected)
    assert sys.modules[own.name]


def test_an_existing_hub(written: tuple[Path, Path]) -> None:
    with forgotten():
        model = hub(written)
        tokens = [model.encode(line) for line in sentences()[:4]]
        expected = model.generate(tokens, beam=3, max_len_b=12)
        with counted() as taken:
            assert fairseq_aggdec.adopt(model) is model
            assert_equal(model.generate(tokens, beam=3, max_len_b=12), expected)
            assert taken
        greedy = model.generate(tokens, beam=1, max_len_b=12, decoding="stock")
        assert_equal(model.generate(tokens, decoding="iad", max_len_b=12), greedy)
        fairseq_aggdec.adopt(model, decoding="greedy")
        assert_equal(model.generate(tokens, max_len_b=12), greedy)
        with pytest.raises(ValueError, match="--decoding nonsense: there are beam, stock"):
            model.generate(tokens, decoding="nonsense")
        with pytest.raises(TypeError, match="there is no option 'decodin'"):
            fairseq_aggdec.adopt(model, decodin="iad")


def stock_generator(written: tuple[Path, Path], **options: Any) -> Any:
    with forgotten():
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(written[1])], {"data": str(written[0])}
        )
        options = {"beam": 4, "max_len_b": 12, **options}
        return task, models, task.build_generator(models, Namespace(**options))


def test_an_existing_generator(written: tuple[Path, Path]) -> None:
    _, _, generator = stock_generator(written)
    assert type(fairseq_aggdec.adopt(generator)) is BeamGenerator
    greedy = fairseq_aggdec.adopt(generator, decoding="iad")
    assert type(greedy) is DraftAndVerifyGenerator and greedy.beam_size == 1
    assert greedy.max_len_b == 12


class Own(SequenceGenerator):
    pass


class OwnSearch(search.BeamSearch):
    pass


def sampling(generator: Any) -> None:
    generator.search = search.Sampling(generator.tgt_dict)


def with_own_search(generator: Any) -> None:
    generator.search = OwnSearch(generator.tgt_dict)


def patched(generator: Any) -> None:
    generator.finalize_hypos = lambda *args: None


def patched_search(generator: Any) -> None:
    generator.search.step = lambda *args: None


def with_language_model(generator: Any) -> None:
    generator.lm_model = generator.model.single_model


def suppressing(generator: Any) -> None:
    generator.token_indices_to_suppress = [5]


def matching(generator: Any) -> None:
    generator.match_source_len = True


def other_class(generator: Any) -> None:
    generator.__class__ = Own


ALTERED = {
    sampling: "--sampling",
    with_own_search: "a search of type OwnSearch",
    patched: r"a SequenceGenerator with a finalize_hypos\(\) put onto it",
    patched_search: r"a BeamSearch with a step\(\) put onto it",
    with_language_model: "--lm-path",
    suppressing: "tokens_to_suppress",
    matching: "--match-source-len in a task that does not search by it",
    other_class: "a generator of type Own",
}


@pytest.mark.parametrize("alter", ALTERED)
def test_what_is_not_plain_is_left_to_stock_and_said(
    alter: Any, written: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, _, generator = stock_generator(written)
    alter(generator)
    with caplog.at_level(logging.INFO, logger="fairseq_aggdec"):
        assert fairseq_aggdec.adopt(generator) is generator
    assert f"left to stock fairseq: {ALTERED[alter]}".replace("\\", "") in caplog.text
    with pytest.raises(ValueError, match=f"{ALTERED[alter]} does not go with --decoding greedy"):
        fairseq_aggdec.adopt(generator, decoding="greedy")


def test_a_method_replaced_for_all_is_seen(
    written: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, generator = stock_generator(written)
    monkeypatch.setattr(SequenceGenerator, "finalize_hypos", lambda *args: None)
    assert fairseq_aggdec.adopt(generator) is generator


def test_what_decodes_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="a int decodes nothing"):
        fairseq_aggdec.adopt(5)


def test_every_task_has_our_options_but_where_they_clash() -> None:
    hidden = {name: task.hidden for name, task in TASK_REGISTRY.items() if task.hidden}
    assert hidden == {}
    assert all(issubclass(task, takeover.DecodingTask) for task in TASK_REGISTRY.values())


def test_the_alias(written: tuple[Path, Path]) -> None:
    assert_same(ours(*command(written, "translation_aggdec")), ours(*command(written)))


@pytest.mark.parametrize("name", ["translation", "multilingual_translation", "translation_aggdec"])
def test_a_task_can_be_pickled_and_copied(
    written: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    """One with a configuration, one with a Namespace, and our own; each decodes as before."""
    data, model = written
    if name == "multilingual_translation":
        model = tmp_path / "model.pt"
        flags = ["--lang-pairs", "de-en", "-s", "de", "-t", "en"]
        write_model(model, data, name, "multilingual_transformer", *flags, *SIZES)
    changes = {"data": str(data), "source_lang": "de", "target_lang": "en"}
    with forgotten():
        fairseq_aggdec.adopt()
        if name == "translation_aggdec":
            task = fairseq_aggdec.from_pretrained(model, data).task
        else:
            task = checkpoint_utils.load_model_ensemble_and_task([str(model)], changes)[2]
        assert isinstance(task, DecodingTask)
        for again in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task), copy.copy(task)):
            assert type(again) is type(task) and again.kind == task.kind
            assert again.source_dictionary == task.source_dictionary
            assert again.settings.source_lang == "de" and again.datasets == {}
            assert again.reusable is not task.reusable and again.state_dict() == {}
