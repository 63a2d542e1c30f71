"""Every door into stock fairseq says its line, once, however many batches and calls come through it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairseq
import httpx
import pytest
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.utils import import_user_module
from fairseq_cli import generate, interactive, train

import fairseq_aggdec
from fairseq_aggdec.cli import fairseq_commands, main, parsers
from tests.cli.commands import log_lines, run
from tests.pipelines.making import (
    BATCHES,
    SIZES,
    USER_DIR,
    forgotten,
    sentences,
    write_model,
    write_training,
)
from tests.pipelines.test_left_to_stock import NARROW
from tests.serving import live

PAIR = shlex.split("-s de -t en")
BEAM = shlex.split("--beam 2")
HOW: dict[str, Any] = {"beam": 2, "max_len_b": 9}
LINES = sentences()[:4]
EXPERTS = Path(fairseq.__file__).parent / "examples/translation_moe/translation_moe_src"
OF_EXPERTS = shlex.split("--method hMoEup --num-experts 3")
TRAINING = shlex.split(
    "--arch lightconv_iwslt_de_en --cpu --max-update 4 --optimizer adam --lr 0.01 "
    "--batch-size 5 --num-workers 0 --no-save --required-batch-size-multiple 1 --validate-interval-updates 2"
)
BLEU = [
    *("--eval-bleu", "--eval-bleu-detok", "space"),
    *("--eval-bleu-args", '{"beam": 2, "max_len_b": 9}'),
]


@dataclass
class Place:
    """Where the models of the doors are.

    Attributes:
        data: sets and dictionaries. layers: a model whose layers only stock fairseq runs. validated: the same, whose
            options say that validation decodes. plain: a Transformer.
        experts: a mixture of experts, of a task of fairseq's examples.
    """

    data: Path
    layers: Path
    validated: Path
    plain: Path
    experts: Path

    def command(self, *more: str | Path) -> list[Any]:
        return [self.data, "--path", self.layers, *PAIR, "--max-len-b", "9", *more]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("doors")
    data = write_training(folder / "data", ["de", "en"])
    with forgotten():
        import_user_module(Namespace(user_dir=str(EXPERTS)))
    made = {
        "layers": ("translation", "lightconv_iwslt_de_en", NARROW["lightconv"]),
        "validated": ("translation", "lightconv_iwslt_de_en", [*NARROW["lightconv"], *BLEU]),
        "plain": ("translation", "transformer", SIZES),
        "experts": ("translation_moe", "transformer", [*OF_EXPERTS, *SIZES]),
    }
    return Place(
        data,
        **{
            name: write_model(folder / f"{name}.pt", data, task, arch, *PAIR, *flags)
            for name, (task, arch, flags) in made.items()
        },
    )


# -- the doors; each decodes several batches, or is called twice


def ended(status: object, expected: int = 0) -> None:
    assert (status or 0) == expected


def ours(command: Callable[[], Any]) -> Callable[[], None]:
    """A command of ours that has to succeed."""
    return lambda: ended(command())


def tool(name: str, *more: str, status: int = 0) -> Callable[[Place, Path], Any]:
    def door(place: Place, folder: Path) -> None:
        given = [*map(str, place.command("--cpu", *more))]
        given = [word.replace("FOLDER", str(folder)) for word in given]
        run(lambda: ended(main.run_tool(name, given), status))

    return door


def of_hub(model: Path, place: Place, **options: Any) -> Any:
    return TransformerModel.from_pretrained(
        str(model.parent), model.name, str(place.data), **options
    )


def hub(place: Place, folder: Path) -> None:
    found = of_hub(place.layers, place, user_dir=USER_DIR[1])
    for _ in range(2):
        found.translate(LINES, **HOW)


def adopted_hub(place: Place, folder: Path) -> None:
    found = fairseq_aggdec.adopt(of_hub(place.layers, place))
    for _ in range(2):
        found.translate(LINES, **HOW)


def experts_of_a_hub(place: Place, folder: Path) -> None:
    """The task is that of the user-dir; nobody has asked for the plugin, which is imported."""
    found = of_hub(place.experts, place, user_dir=str(EXPERTS))
    for expert in range(2):
        found.translate(LINES, inference_step_args={"expert": expert}, **HOW)


def experts_of_an_adopted_hub(place: Place, folder: Path) -> None:
    found = of_hub(place.experts, place, user_dir=USER_DIR[1])
    for expert in range(2):
        found.translate(LINES, inference_step_args={"expert": expert}, sampling=True, **HOW)


def loaded(place: Place) -> tuple[Any, Any, Any, Any]:
    """Models and task as fairseq loads them, a batch, and options."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(place.layers)], {"data": str(place.data)}
    )
    dictionary = task.source_dictionary
    tokens = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in LINES]
    dataset = task.build_dataset_for_inference(tokens, [len(row) for row in tokens])
    return models, task, dataset.collater([dataset[i] for i in range(4)]), Namespace(**HOW)


def adopted_task(place: Place, folder: Path) -> None:
    models, task, sample, options = loaded(place)
    fairseq_aggdec.adopt(task)
    for _ in range(2):
        generator = task.build_generator(models, options)
        task.inference_step(generator, models, sample)


def adopted_generator(place: Place, folder: Path) -> None:
    models, task, sample, options = loaded(place)
    generator = fairseq_aggdec.adopt(task.build_generator(models, options))
    for _ in range(2):
        task.inference_step(generator, models, sample)


def changed_later(place: Place, folder: Path) -> None:
    """A generator of ours onto which somebody puts another search."""
    found = fairseq_aggdec.from_pretrained(place.plain, place.data, device="cpu", **HOW)
    step = type(found.generator.search).step
    found.generator.search.step = step.__get__(found.generator.search)
    for _ in range(2):
        found.translate(LINES, batch_size=2)


def python(place: Place, folder: Path) -> None:
    found = fairseq_aggdec.from_pretrained(place.layers, place.data, device="cpu", **HOW)
    found.translate(LINES, batch_size=2)
    found.generate(LINES, beam=3)


def service(place: Place, folder: Path) -> None:
    translator = fairseq_aggdec.from_pretrained(place.layers, place.data, device="cpu", **HOW)
    with live(translator) as client:
        for line in LINES:
            answer: httpx.Response = client.post(
                "/translate", json={"q": line, "source": "de", "target": "en"}
            )
            assert answer.status_code == 200


def file_of_text(place: Place, folder: Path) -> None:
    text = folder / "in"
    text.write_text("".join(f"{line}\n" for line in LINES))
    files = ["--input-file", text, "--output-file", folder / "out", "--batch-size", "2", "--cpu"]
    run(ours(fairseq_commands.generate), *place.command(*BEAM, *files))


def command(
    of: Callable[[], Any], *more: str | Path, stdin: str = ""
) -> Callable[[Place, Path], Any]:
    return lambda place, folder: run(of, *place.command(*BEAM, *more), stdin=stdin)


def training(of: Callable[[], Any], *more: str) -> Callable[[Place, Path], Any]:
    return lambda place, folder: run(
        of, place.data, *PAIR, *NARROW["lightconv"], *TRAINING, *BLEU, *more
    )


TYPED = "".join(f"{line}\n" for line in LINES)
BUFFERED = ["--cpu", "--buffer-size", "2"]
LAYERS = "LightConv"
# Door -> how one decodes through it, and what its line says.
DOORS: dict[str, tuple[Callable[[Place, Path], Any], str]] = {
    "fairseq-generate": (command(generate.cli_main, *BATCHES, *USER_DIR), LAYERS),
    "fairseq-generate --sampling": (
        command(generate.cli_main, *BATCHES, *USER_DIR, "--sampling", "--nbest", "2"),
        "--sampling",
    ),
    "fairseq-generate --score-reference": (
        command(generate.cli_main, *BATCHES, *USER_DIR, "--score-reference"),
        "--score-reference",
    ),
    "fairseq-generate --decoding greedy": (
        command(generate.cli_main, *BATCHES, *USER_DIR, "--decoding", "greedy"),
        LAYERS,
    ),
    "fairseq-interactive": (
        command(interactive.cli_main, *BUFFERED, *USER_DIR, stdin=TYPED),
        LAYERS,
    ),
    "fairseq-train --eval-bleu": (training(train.cli_main, *USER_DIR), LAYERS),
    "aggdec-generate": (command(ours(fairseq_commands.generate), *BATCHES), LAYERS),
    "aggdec-generate --input-file": (file_of_text, LAYERS),
    "aggdec-interactive": (
        command(ours(fairseq_commands.interactive), *BUFFERED, stdin=TYPED),
        LAYERS,
    ),
    "aggdec-train": (training(ours(fairseq_commands.train)), LAYERS),
    "aggdec-validate": (
        lambda place, folder: run(
            ours(fairseq_commands.validate),
            *(place.data, "--path", place.validated, *BATCHES, "--valid-subset", "test"),
        ),
        LAYERS,
    ),
    "aggdec audit": (tool("audit", "--limit", "4", "--batch-sizes", "1", "2"), LAYERS),
    "aggdec bench": (tool("bench", "--limit", "4", "--systems", "beam", "stock"), LAYERS),
    "aggdec distill": (tool("distill", "--output", "FOLDER/distilled"), LAYERS),
    "aggdec trace": (tool("trace", "--decoding", "iad", status=2), LAYERS),
    "aggdec serve": (service, LAYERS),
    "from_pretrained": (python, LAYERS),
    "from_pretrained, changed later": (changed_later, "a BeamSearch with a step() put onto it"),
    "hub": (hub, LAYERS),
    "hub, adopted": (adopted_hub, LAYERS),
    "hub of experts": (experts_of_a_hub, "translation_moe"),
    "hub of experts, adopted": (experts_of_an_adopted_hub, "--sampling"),
    "task, adopted": (adopted_task, LAYERS),
    "generator, adopted": (adopted_generator, LAYERS),
}
# Commands and names of the package that decode nothing.
NO_DOORS = {
    *("convert", "pack", "average-checkpoints", "upgrade-checkpoint", "lattice-tables"),
    *("train-drafter", "doctor"),
}
NOTHING_DECODES = {"Hypothesis", "Translator", "__version__", "register"}


def test_every_door_is_walked() -> None:
    commands = {name.partition(" --")[0] for name in DOORS}
    assert {f"aggdec-{name}" for name in main.COMMANDS} <= commands
    assert {f"aggdec {name}" for name in set(main.TOOLS) - NO_DOORS} <= commands
    assert set(main.TOOLS) >= NO_DOORS and NO_DOORS.isdisjoint(parsers.DECODING)
    assert set(fairseq_aggdec.__all__) - NOTHING_DECODES == {"adopt", "from_pretrained"}


@pytest.mark.parametrize("name", DOORS)
def test_the_door_says_its_line_once(name: str, place: Place, tmp_path: Path) -> None:
    door, reason = DOORS[name]
    with forgotten(), log_lines() as log:
        door(place, tmp_path)
    assert not [line for line in log if "decoding by" in line]
    said = [line for line in log if "left to stock fairseq" in line]
    assert [reason in line for line in said] == [True], said
