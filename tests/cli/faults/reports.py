"""What users of fairseq have reported in public: the symptom in our own words, and what comes of it here.

A new report is one line of :data:`REPORTS`.
"""

from __future__ import annotations

from dataclasses import replace

from tests.cli.faults.bench import LANGUAGES, REFUSED, WARNED, WORKS, Case

GENERATE, INTERACTIVE = "fairseq-generate", "fairseq-interactive"
PAIR = f" --source-lang {LANGUAGES[0]} --target-lang {LANGUAGES[1]}"
EXCHANGED = f"--source-lang {LANGUAGES[1]} --target-lang {LANGUAGES[0]}"
# Issue of fairseq -> the symptom, the command, its options, what comes of it, what is said.
REPORTS = [
    (
        7,
        "a beam wider than the vocabulary ends in an index error",
        GENERATE,
        "--beam 100",
        WORKS,
        "",
    ),
    (
        588,
        "--no-early-stop ends in an index error",
        GENERATE,
        "--beam 4 --no-early-stop",
        WORKS,
        "",
    ),
    (649, "a small --max-tokens ends in a type error", GENERATE, "--max-tokens 12", WORKS, ""),
    (
        2650,
        "a sentence above --max-tokens ends the run",
        GENERATE,
        "--max-tokens 3",
        REFUSED,
        "max_tokens=3",
    ),
    (2761, "--bpe-codes is unknown", INTERACTIVE, "--bpe-codes codes", REFUSED, "--bpe-codes"),
    (
        3533,
        "--replace-unk looks for a file named @@",
        INTERACTIVE,
        "--replace-unk",
        REFUSED,
        "@@",
    ),
    (3893, "one hypothesis does not work", GENERATE, "--beam 1 --nbest 1", WORKS, ""),
    (3948, "a beam that is text", GENERATE, "--beam many", REFUSED, "--beam"),
]
SIBLINGS = "left to stock fairseq: --diversity-rate"
# The same kinds, as users of this package meet them.
ALIKE = [
    ("fp16 on a CPU", GENERATE, "--beam 3 --fp16", WORKS, ""),
    ("more hypotheses than the beam has", GENERATE, "--beam 2 --nbest 3", WORKS, ""),
    (
        "one of two languages, which is then ignored",
        GENERATE,
        "--source-lang german",
        REFUSED,
        "german",
    ),
    ("languages that are exchanged", INTERACTIVE, EXCHANGED, WARNED, "exchange --source-lang"),
    (
        "--remove-bpe takes the data folder for its value",
        GENERATE,
        "--remove-bpe {data}",
        REFUSED,
        "post_process",
    ),
    ("siblings, which only fairseq searches", GENERATE, "--diversity-rate 0.5", WARNED, SIBLINGS),
    ("a temperature of 0", GENERATE, "--temperature 0", REFUSED, "--temperature"),
    ("a prefix longer than the references", GENERATE, "--prefix-size 100", WORKS, ""),
    ("samples, but one is asked for", GENERATE, "--sampling --beam 2", REFUSED, "--nbest"),
    (
        "groups that do not divide the beam",
        GENERATE,
        "--diverse-beam-groups 3 --beam 4",
        REFUSED,
        "--beam",
    ),
    ("a set that is not there", GENERATE, "--gen-subset dev", REFUSED, "dev"),
    (
        "an ensemble of two kinds of models",
        GENERATE,
        "--path {model}:{interleaved}",
        REFUSED,
        "--decoding interleaved",
    ),
    ("a drafter among the models", GENERATE, "--path {model}:{drafter}", REFUSED, "--drafter-path"),
    ("a buffer of no line", INTERACTIVE, "--buffer-size 0", REFUSED, "--buffer-size"),
    ("an input that is not there", INTERACTIVE, "--input none", REFUSED, "none"),
    ("--lenpen 0", GENERATE, "--beam 3 --lenpen 0", WORKS, ""),
    ("--unnormalized", GENERATE, "--beam 3 --unnormalized", WORKS, ""),
    ("--match-source-len", GENERATE, "--beam 3 --match-source-len", WORKS, ""),
    ("outputs of one token", GENERATE, "--beam 3 --max-len-b 1", WORKS, ""),
    ("outputs of no token", GENERATE, "--max-len-b 0", REFUSED, "--min-len 1"),
    (
        "options of the model that are changed",
        GENERATE,
        "--model-overrides {{'max_target_positions':100}}",
        WORKS,
        "",
    ),
    ("a seed below 0", GENERATE, "--seed -1", REFUSED, "Seed"),
    (
        "parts of a model that are not there",
        GENERATE,
        "--checkpoint-shard-count 2",
        REFUSED,
        "model_part0.pt",
    ),
]
INPUT = "w1 w2 never heard\nw3\n"


def cases() -> list[Case]:
    told = [(f"{symptom} (fairseq #{issue})", *rest) for issue, symptom, *rest in REPORTS]
    found = []
    for name, command, options, outcome, says in [*told, *ALIKE]:
        interactive = command == INTERACTIVE
        more = PAIR if interactive and "--source-lang" not in options else ""
        model = "" if "--path" in options else "--path {model} "
        case = Case("public reports", name, command, f"{model}{options}{more}", outcome, says)
        found.append(replace(case, stdin=INPUT if interactive else "", as_stock=True))
    return found
