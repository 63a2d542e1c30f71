"""Options that make no sense, ask for what a method cannot do, or are far too large."""

from __future__ import annotations

from pathlib import Path

from tests.cli.faults.bench import REFUSED, SENTENCES, WARNED, WORKS, Bench, Case

GENERATE = "fairseq-generate"


def refused(options: str, says: str, group: str = "options") -> Case:
    return Case(group, options.replace("{model}", "MODEL"), GENERATE, options, REFUSED, says)


def method(name: str, rest: str) -> str:
    """The options of a method with a model that fits."""
    model = {"lattice": "lattice", "interleaved": "interleaved", "blockwise": "blockwise"}
    more = {"gad": " --drafter-path {drafter}", "nar": " --drafter-path {drafter}"}
    own = model.get(name, "model")
    tables = " --lattice {tables}" if name == "lattice" or "--shortlist" in rest else ""
    return f"--decoding {name} --path {{{own}}}{more.get(name, '')}{tables} {rest}"


# method, options, what the message names
SENSELESS = [
    ("greedy", "--no-repeat-ngram-size -1", "--no-repeat-ngram-size -1"),
    ("greedy", "--unkpen=-inf", "--unkpen -inf"),
    ("beam", "--lenpen nan", "--lenpen nan"),
    ("beam", "--lenpen inf --beam 2", "--lenpen inf"),
    ("iad", "--temperature inf", "--temperature inf"),
    ("greedy", "--beam 0", "--beam 0"),
    ("beam", "--beam -2", "--beam -2"),
    ("beam", "--batch-size 0", "--batch-size 0"),
    ("greedy", "--max-tokens -1", "--max-tokens -1"),
    ("beam", "--constraints", "--constraints"),
    ("greedy", "--min-len 50", "--min-len 50"),
    ("interleaved", "--min-len 50", "--min-len 50"),
    ("lattice", "--min-len 50", "--min-len 50"),
    ("greedy", "--acceptance min:0", "--acceptance min:0"),
    ("iad", "--acceptance top-beta:0", "--acceptance top-beta:0"),
    ("iad", "--acceptance top-beta:3:-1", "--acceptance top-beta:3:-1"),
    ("iad", "--acceptance top-k:0", "--acceptance top-k:0"),
    ("iad", "--acceptance distance", "--acceptance distance"),
    ("iad", "--acceptance distance:-1", "--acceptance distance:-1"),
    ("iad", "--acceptance best", "top-beta:RANK:NATS"),
    ("iad", "--variant match=unique", "a key of iad-match"),
    ("iad", "--variant iad-match=best", "choose aligned or unique"),
    ("iad", "--int8 sums", "choose none, drafts, all"),
    ("gad", "--draft-tokens 0", "--draft-tokens 0"),
    ("gad", "--draft-tokens 99", "--draft-tokens 99"),
    ("gad", "--draft-tokens many", "--draft-tokens many"),
    ("iad", "--draft-tokens 0", "--draft-tokens 0"),
    ("iad", "--draft-tokens many", "--draft-tokens many"),
    ("gad", "--draft-tokens -3", "--draft-tokens -3"),
    ("gad", "--acceptance min:99", "--acceptance min:99"),
    ("gad", "--draft-tree 0", "--draft-tree 0"),
    ("gad", "--draft-tree many", "--draft-tree many"),
    ("nar", "--draft-tokens auto", "--draft-tokens auto"),
    ("nar", "--acceptance top-beta", "--acceptance top-beta"),
    ("nar", "--acceptance min:2", "--acceptance min:2"),
    ("nar", "--int8 drafts", "--int8 drafts"),
    ("nar", "--draft-tree 5", "--draft-tree"),
    ("nar", "--print-alignment", "--print-alignment"),
    ("blockwise", "--draft-tokens 4", "--draft-tokens 4"),
    ("blockwise", "--acceptance min:4", "--acceptance min:4"),
    ("blockwise", "--acceptance min:3 --draft-tokens 2", "at most 2 tokens"),
    ("interleaved", "--variant dedup=-1", "--variant dedup=-1"),
    ("lattice", "--variant lattice-candidates=0", "--variant lattice-candidates=0"),
    ("lattice", "--variant lattice-candidates=2", "--variant lattice-candidates=2"),
    ("lattice", "--variant lattice-length-window=-1", "--variant lattice-length-window=-1"),
    ("lattice", "--variant lattice-least-probability=2", "--variant lattice-least-probability=2"),
    (
        "lattice",
        "--variant lattice-least-probability=nan",
        "--variant lattice-least-probability=nan",
    ),
    ("beam", "--shard-id 1", "--shard-id 1"),
    ("stock", "--num-shards 3 --shard-id 3", "--shard-id 3"),
    ("beam", "--num-shards 3 --distributed-world-size 2", "--num-shards 3"),
    ("nar", "--score-reference", "--score-reference"),
    ("interleaved", "--score-reference", "--score-reference"),
    ("lattice", "--score-reference", "--score-reference"),
    ("beam", "--diversity-rate 0.5 --int8 all", "nor can stock fairseq: it has no --int8"),
    ("greedy", "--shortlist -1", "--shortlist -1"),
    ("greedy", "--shortlist 5 --prefix-size 1", "--prefix-size"),
    ("lattice", "--shortlist 5", "--shortlist"),
]
# what a method cannot honour
IMPOSSIBLE = [
    ("greedy", "--nbest 2", "--nbest"),
    ("iad", "--sampling", "--sampling"),
    ("gad", "--diverse-beam-groups 2", "--diverse-beam-groups"),
    ("greedy", "--diversity-rate 0.5", "--diversity-rate"),
    ("greedy", "--retain-dropout", "--retain-dropout"),
    ("iad", "--constraints", "--constraints"),
    ("iad", "--lm-path {model}", "--lm-path"),
    ("greedy", "--match-source-len --unkpen -1", "--unkpen"),
    ("interleaved", "--prefix-size 1", "--prefix-size"),
    ("interleaved", "--sampling", "--sampling"),
    ("interleaved", "--no-repeat-ngram-size 2", "--no-repeat-ngram-size"),
    ("lattice", "--prefix-size 1", "--prefix-size"),
    ("lattice", "--print-alignment", "--print-alignment"),
    ("lattice", "--retain-iter-history", "--retain-iter-history"),
    ("iad", "--draft-from file", "--draft-file"),
    ("iad", "--draft-file x", "--draft-file x"),
    ("iad", "--draft-from file --draft-file {tmp}/none", "--draft-file"),
    ("lattice", "--lattice {tmp}/none", "holds no lattice tables"),
]
WRONG_MODEL = [
    ("--decoding greedy --path {lattice}", "--decoding greedy"),
    ("--decoding iad --path {lattice}", "--decoding iad"),
    ("--decoding gad --path {lattice} --drafter-path {drafter}", "--decoding gad"),
    ("--decoding greedy --path {interleaved}", "--decoding greedy"),
    ("--decoding lattice --path {model} --lattice {tables}", "--path"),
    ("--decoding interleaved --path {lattice}", "--path"),
    ("--decoding blockwise --path {model}", "--decoding blockwise"),
    ("--decoding blockwise --path {blockwise}:{blockwise}", "--path names several"),
    ("--decoding gad --path {drafter} --drafter-path {drafter}", "--path"),
    ("--decoding gad --path {model}", "--drafter-path"),
    ("--decoding gad --path {model} --drafter-path {model}", "--drafter-path"),
    ("--decoding gad --path {model} --drafter-path {tmp}/none.pt", "none.pt"),
    ("--decoding nar --path {model} --drafter-path {lattice}", "--drafter-path"),
    ("--decoding beam --path {lattice}", "--decoding lattice"),
    ("--decoding wrong --path {model}", "--decoding"),
    ("--decoding lattice --path {lattice}", "--lattice"),
]  # fmt: skip
HUGE = [
    ("lattice", "--variant lattice-candidates=1000000 --variant lattice-least-probability=0"),
    ("lattice", "--variant lattice-length-window=1000000"),
    ("lattice", "--nbest 1000"),
    ("greedy", "--shortlist 1000000"),
    ("iad", "--acceptance top-beta:1000000:0"),
    ("interleaved", "--variant dedup=1000000"),
    ("interleaved", "--beam 1000000 --variant dedup=0"),
    ("greedy", "--no-repeat-ngram-size 1000000"),
    ("greedy", "--unkpen inf"),
    ("greedy", "--lenpen -1000"),
    ("iad", "--lenpen 40"),
    ("greedy", "--max-len-b 1000000000"),
    ("iad", "--batch-size 1000000000"),
]
NOT_STOCK = ("lattice", "interleaved")


def draft_file(lines: int) -> object:
    def make(bench: Bench, tmp: Path) -> None:
        (tmp / "drafts").write_text("w1 w2\n" * lines)

    return make


def unused() -> list[Case]:
    """Options that the method does not read are named and change nothing."""
    options = [
        "--draft-tokens 3",
        "--drafter-path x.pt",
        "--draft-from source",
        "--variant dedup=2",
    ]
    options += [
        "--variant stop-rule=any",
        "--variant length-penalty=gnmt",
        "--variant end-condition=all",
    ]
    options += ["--draft-tree 5"]
    return [
        Case("unused options", given, GENERATE, method("greedy", given), WARNED, given.split()[0])
        for given in options
    ]


def cases() -> list[Case]:
    found = [
        Case("senseless values", f"{name} {rest}", GENERATE, method(name, rest), REFUSED, says)
        for name, rest, says in SENSELESS
    ]
    found += [
        Case("impossible requests", f"{name} {rest}", GENERATE, method(name, rest), REFUSED, says)
        for name, rest, says in IMPOSSIBLE
        if says
    ]
    found += [
        Case("models of another kind", rest, GENERATE, rest, REFUSED, says)
        for rest, says in WRONG_MODEL
    ]
    found += [
        Case(
            "huge values",
            f"{name} {rest}",
            GENERATE,
            method(name, rest),
            WORKS,
            lossless=name not in NOT_STOCK and "--max-len-b" not in rest,
        )
        for name, rest in HUGE
    ]
    drafts = method("iad", "--draft-from file --draft-file {tmp}/drafts")
    for lines in (0, SENTENCES["test"] - 1, SENTENCES["test"] + 1, 2 * SENTENCES["test"]):
        name = f"{lines} lines for {SENTENCES['test']} sentences"
        found.append(
            Case("draft files", name, GENERATE, drafts, REFUSED, "--draft-file", draft_file(lines))  # type: ignore[arg-type]
        )
    return found + unused()
