"""How long does a validation with --eval-bleu take, with stock fairseq's beam search and with ours?

    python -m scripts.recipes.beam.validation_speed DATA --path model.pt --gen-subset valid --cpu --beam 5 --output FILE

takes every flag of fairseq-generate; --max-tokens and --batch-size make the batches. Each is validated as fairseq-train
does it (loss, decoding, BLEU of the batch), by both in turn; what packs the new weights is in the time of the first.
--cpu-time counts the time of the processor, which other programs on the machine hardly change.
"""

import logging
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import write_table

DECODINGS = ("stock", "beam")


def main() -> None:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("validation")
    group.add_argument("--threads", type=int, default=1)
    group.add_argument("--cpu-time", action="store_true")
    group.add_argument("--output", type=Path, help="result files: OUTPUT.json and OUTPUT.md")
    training = "the validation of fairseq-train has none"
    refused = {"lm_path": training, "prefix_size": training, "decoding": "both are measured"}
    session = Session(parser, reads=["beam", "batch_size"], refused=refused)
    if len(session.models) > 1:
        raise SystemExit("error: --path: a validation is that of one model")
    args = session.args
    results.check_counts(args, "threads")
    results.check_place("--output", args.output, ".json", ".md")
    if session.dataset.tgt is None:
        raise SystemExit(f"error: --gen-subset {args.gen_subset} has no references")
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    found = validate(session, time.process_time if args.cpu_time else time.perf_counter)
    table = markdown(found, "CPU time" if args.cpu_time else "time")
    print(table)
    if args.output:
        title = f"Validation with --eval-bleu, beam {args.beam}, {Path(args.data).name}"
        command = machine.command("scripts.recipes.beam.validation_speed", sys.argv[1:])
        write_table(args.output, title, command, table, found)


def validate(session: Session, clock: Any) -> dict[str, dict[str, Any]]:
    """Seconds, BLEU and sentences of each decoding."""
    task, (model,) = session.task, session.models
    task.cfg.eval_bleu, task.tokenizer = True, None
    criterion = task.build_criterion(session.saved.criterion)
    options = Namespace(**vars(session.args) | {"beam": session.args.beam})
    generators = {}
    for decoding in DECODINGS:
        task.cfg.decoding = decoding
        generators[decoding] = task.build_generator([model], options)
    seconds = dict.fromkeys(DECODINGS, 0.0)
    logs: dict[str, list[Any]] = {decoding: [] for decoding in DECODINGS}
    for turn, sample in enumerate(session.task_batches(session.cfg.dataset.batch_size)):
        for decoding in DECODINGS if turn % 2 else reversed(DECODINGS):
            task.sequence_generator = generators[decoding]
            start = clock()
            with torch.no_grad():
                _, _, log = task.valid_step(sample, model, criterion)
            if session.cuda:
                torch.cuda.synchronize()
            seconds[decoding] += clock() - start
            logs[decoding].append(utils.move_to_cpu(log))
    return {
        decoding: {
            "seconds": seconds[decoding],
            "bleu": bleu(session, criterion, logs[decoding]),
            "sentences": sum(log["nsentences"] for log in logs[decoding]),
        }
        for decoding in DECODINGS
    }


def bleu(session: Session, criterion: Any, logs: list[dict[str, Any]]) -> float:
    """As the training log has it."""
    with metrics.aggregate(new_root=True) as aggregated:
        session.task.reduce_metrics(logs, criterion)
    return aggregated.get_smoothed_value("bleu")


def markdown(found: dict[str, dict[str, Any]], what: str) -> str:
    rows = [
        f"| decoding | sentences | BLEU in the log | {what} (s) | speedup |",
        "|---|---|---|---|---|",
    ]
    for decoding, line in found.items():
        speedup = found["stock"]["seconds"] / line["seconds"]
        rows.append(
            f"| `{decoding}` | {line['sentences']} | {line['bleu']:.2f} | {line['seconds']:.1f} | {speedup:.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    with results.refusals():
        main()
