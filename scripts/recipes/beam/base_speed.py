"""Speed of beam search at another size: recorded searches of a small model replayed on random weights.

    python -m scripts.recipes.beam.base_speed DATA --path model.pt --gen-subset test --cpu --size base \\
        --limit 24 --output FILE

takes every flag of fairseq-generate. Stock takes as many steps as each recorded search; ours evaluates the prefixes
that the recorded one did, one sentence at a time. The replayed search must write what was recorded.
"""

import logging
import sys
import tempfile
from pathlib import Path

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import table
from fairseq_aggdec.bench.timing import measure
from fairseq_aggdec.records import machine, results
from scripts.random_models import SIZES, prepare
from scripts.recipes.beam import replay_beam


def main() -> None:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("replay")
    group.add_argument("--size", choices=SIZES, default="base")
    group.add_argument("--limit", type=int, default=24, help="sentences, of all lengths")
    group.add_argument("--threads", type=int, default=1)
    group.add_argument("--output", type=Path, help="result files: OUTPUT.json and OUTPUT.md")
    session = Session(parser, reads=["beam"])
    args, beam = session.args, session.args.beam
    results.check_counts(args, "limit", "threads")
    results.check_place("--output", args.output, ".json", ".md")
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    records = replay_beam.record_searches(session, beam, args.limit)
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        arguments = prepare(Path(folder), args.size, [item.record for item in records])
        other = Session(
            generation_parser(None), [*arguments, "--cpu", "--beam", str(beam)], reads=["beam"]
        )
        batches = [other.dataset.collater([other.dataset[i]]) for i in range(len(records))]
        stock = replay_beam.stock_of_as_many_steps(other, beam, records)
        ours = replay_beam.replayed(other, beam, records)
        found = measure([stock, ours], batches, warm_up=0)
    written = [found[1].outputs[i] for i in range(len(records))]
    assert written == [item.output for item in records], "the replay wrote something else"
    rows = table.lines([stock, ours], found, 1, args.threads, [stock.name])
    for row in rows:
        row.differ = None  # random weights write something else
    shown = table.markdown(rows)
    print(shown)
    if args.output:
        title = f"Beam search replayed: Transformer-{args.size} with random weights"
        command = machine.command("scripts.recipes.beam.base_speed", sys.argv[1:])
        extra = {"nodes": sum(len(item.rows) for item in records) / len(records)}
        results.write_table(args.output, title, command, shown, [vars(row) for row in rows], extra)


if __name__ == "__main__":
    with results.refusals():
        main()
