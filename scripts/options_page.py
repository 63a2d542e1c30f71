"""docs/options.md: every option that the plugin adds to fairseq, from the code that declares it.

python -m scripts.options_page > docs/options.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_aggdec.__main__ import added_options, ours
from fairseq_aggdec.methods.options.settings import VARIANTS

MADE = """
<!-- `python -m scripts.options_page > docs/options.md` writes this page; a test compares them. -->
"""
INTRODUCTION = """\
# Options

This page has every option of the plugin, its default and its meaning. `python -m fairseq_aggdec` prints the same
tables. What each method is for: [choosing a method](methods.md).

Who takes the options of the task:

| command | what it needs |
|---|---|
| `aggdec-generate`, `-interactive`, `-train`, `-validate` | nothing else |
| `fairseq-generate`, `-interactive`, `-validate`, `fairseq-train --eval-bleu` | `--user-dir` and `--task` |
| `fairseq-hydra-train` | `common.user_dir` and `task._name` ([configurations](../configs/README.md)) |
| `fairseq_aggdec.from_pretrained` ([Python](python.md)) | `_` for `-` in names |

fairseq's own `--help` leaves out the options of tasks, architectures and criterions.

## Options of fairseq

These mean what they always mean: `--max-len-a/-b`, `--min-len`, `--unkpen`, `--lenpen`, `--unnormalized`,
`--temperature`, `--prefix-size`, `--match-source-len`, `--print-alignment`, `--replace-unk`, `--post-process`,
`--results-path`, `--path a.pt:b.pt` (ensembles), `--fp16`. Sharding of DATA by `--distributed-world-size` and
`--distributed-rank` works too; texts and distillation share their work [otherwise](bulk.md).

| option | what is special |
|---|---|
| `--beam` above 1 | honoured by `beam`, `stock`, `interleaved`; others take it as 1, and the log says so |
| `--print-step` | prints the number of iterations (I- lines) |
| `--retain-iter-history` | prints what the verifier was shown (E- lines); `interleaved`: each step's sentence |
| `--score-reference` | goes to stock fairseq |
| `--no-repeat-ngram-size` | is enforced; stock fairseq without its CUDA extension ignores it silently |
| `--bf16` | runs the models in bfloat16; stock ignores it. On a CPU [one sentence is faster](performance.md#bfloat16) |

What a method cannot honour is refused in one sentence before any sentence is decoded ([faults](results/faults.md)):

| option | refused by |
|---|---|
| sampling, diverse beams, constraints, `--lm-path`, `--retain-dropout` | all but `stock`, and `beam` by stock |
| `--nbest` above 1 | the greedy methods |
| `--unkpen` below 0 together with `--match-source-len` | the greedy methods |
| `--prefix-size`, `--no-repeat-ngram-size` | `interleaved`, `lattice` |
| `--print-alignment` | `lattice`, `nar` |
| `--retain-iter-history` | `lattice` |
| `--prefix-size` with `--shortlist` | the methods with a shortlist |

An option that has no effect with the chosen method is named in a warning.

The run ends with a summary on stderr, where fairseq logs. It has sentences, tokens, iterations, mean accepted tokens,
acceptance rate, a histogram, and seconds in encoder, draft, verification and the rest.
"""

VARIANT = """
Keys of `--variant`, which may be given several times:

| key | default | meaning |
|---|---|---|
"""

SECTIONS = (
    ("--task", TASK_REGISTRY),
    ("--arch", MODEL_REGISTRY),
    ("--criterion", CRITERION_REGISTRY),
)
TAKES: dict[object, str] = {int: "N", float: "X"}


def page() -> str:
    """The whole page: a section per task, architecture and criterion; an option of several stands in the first."""
    shown: set[tuple[str, str | None]] = set()
    parts = [INTRODUCTION]
    for kind, registry in SECTIONS:
        for name, registered in ours(registry):
            new = [
                action
                for action in added_options(registered)
                if (action.option_strings[0], action.help) not in shown
                and action.help != argparse.SUPPRESS
            ]
            shown |= {(action.option_strings[0], action.help) for action in new}
            if new:
                parts.append(
                    f"\n## {kind} {name}\n\n| option | default | meaning |\n|---|---|---|\n"
                )
                parts += rows(new)
                if name == "translation_aggdec":
                    parts += [VARIANT, *variants()]
    return "".join([*parts, MADE])


def variants() -> Iterator[str]:
    for key, one in VARIANTS.items():
        values = "\\|".join(one.choices) or ("X" if isinstance(one.default, float) else "N")
        yield f"| `{key}={values}` | `{one.default}` | {cell(one.help)} |\n"


def rows(actions: list[argparse.Action]) -> Iterator[str]:
    for action in actions:
        meaning = cell(action.help or "")
        if action.choices is not None:
            names = ", ".join(f"`{choice}`" for choice in action.choices)
            meaning = f"{meaning} ({names})"
        yield f"| `{cell(spelling(action))}` | {default(action)} | {meaning} |\n"


def spelling(action: argparse.Action) -> str:
    """The option with what it takes."""
    option = action.option_strings[0]
    if action.nargs == 0:
        return option
    takes = "NAME" if action.choices is not None else TAKES.get(action.type, "TEXT")
    return f"{option} {action.metavar or takes}"


def default(action: argparse.Action) -> str:
    """Nothing where the option is a switch, or its text says what holds without it."""
    silent = action.default is None or action.default == argparse.SUPPRESS
    return "" if silent or action.nargs == 0 else f"`{action.default}`"


def cell(text: str) -> str:
    """Text that stays in its cell and shows ``<unk>`` as it is."""
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(page(), end="")
