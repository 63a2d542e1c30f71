"""fairseq-validate, fairseq-train and fairseq-hydra-train with our task, and the checkpoints that they write."""

from __future__ import annotations

import re
from pathlib import Path

from fairseq_cli import generate, train

from tests.cli.commands import (
    CUT,
    MODEL,
    PLUGIN,
    SENTENCES,
    TRAINING,
    Result,
    Trained,
    run,
    run_process,
)

# -- validation and training


def bleu(result: Result) -> list[float]:
    """BLEU of every validation."""
    found = [re.search(r"subset \|.* bleu ([\d.]+)", line) for line in result.log]
    return [float(match[1]) for match in found if match]


def test_bleu_in_training_equals_stock(trained: Trained, tmp_path: Path) -> None:
    """The generator is built once, before the weights move."""
    scores = {}
    training = [option for option in TRAINING if option != "--disable-validation"]
    for decoding in ("stock", "iad"):
        arguments: list[str | Path] = [
            *PLUGIN,
            "--decoding",
            decoding,
            "--save-dir",
            tmp_path / decoding,
            "--no-save",
        ]
        arguments += [
            "--finetune-from-model",
            trained.early,
            "--max-update",
            "9",
            "--validate-interval-updates",
            "3",
        ]
        arguments += ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 20}']
        result = run(
            train.cli_main, trained.data, *MODEL, *training, *arguments, "--warmup-updates", "1"
        )
        scores[decoding] = bleu(result)
    assert len(scores["stock"]) >= 3
    assert len(set(scores["stock"])) > 1
    assert scores["stock"] == scores["iad"]
    assert any("decoded_accepted" in line for line in result.log)


HYDRA = """
common: {{user_dir: {plugin}, cpu: true, no_progress_bar: true, log_format: simple, seed: 3}}
task: {{_name: translation_aggdec, data: {data}, source_lang: src, target_lang: tgt, decoding: iad,
        eval_bleu: true, eval_bleu_args: '{{"beam": 1, "max_len_b": 20}}'}}
model: {{_name: transformer, share_all_embeddings: true, dropout: 0.0,
         encoder: {{layers: 1, embed_dim: 32, ffn_embed_dim: 32, attention_heads: 2}},
         decoder: {{layers: 1, embed_dim: 32, ffn_embed_dim: 32, attention_heads: 2}}}}
criterion: {{_name: cross_entropy}}
optimizer: {{_name: adam, lr: [0.01]}}
lr_scheduler: {{_name: fixed}}
dataset: {{batch_size: 64, num_workers: 0, required_batch_size_multiple: 1}}
optimization: {{max_update: 4, lr: [0.01]}}
checkpoint: {{save_dir: {folder}/checkpoints, no_epoch_checkpoints: true}}
"""


def test_hydra_train_and_its_checkpoint(trained: Trained, tmp_path: Path) -> None:
    config = HYDRA.format(plugin=PLUGIN[1], data=trained.data, folder=tmp_path)
    (tmp_path / "tiny.yaml").write_text("# @package _global_\n" + config)
    arguments = ["--config-dir", tmp_path, "--config-name", "tiny", f"hydra.run.dir={tmp_path}/run"]
    done = run_process("hydra_train", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    log = done.stderr + done.stdout
    assert "bleu" in log
    assert "decoded_accepted" in log
    checkpoint = tmp_path / "checkpoints" / "checkpoint_last.pt"
    found, expected = (trained.generate(d, path=checkpoint) for d in ("iad", "stock"))
    assert found.texts() == expected.texts()


def test_checkpoint_trained_with_our_task_loads_without_the_plugin(
    trained: Trained, tmp_path: Path
) -> None:
    options = ["--save-dir", tmp_path, "--max-update", "2", "--no-epoch-checkpoints"]
    trained.train(*PLUGIN, "--decoding", "iad", *options)
    plain = [
        "--task",
        "translation",
        "--path",
        tmp_path / "checkpoint_last.pt",
        "--cpu",
        "--no-progress-bar",
        *CUT,
    ]
    result = run(
        generate.cli_main,
        trained.data,
        *plain,
        "--required-batch-size-multiple",
        "1",
        "--beam",
        "1",
    )
    assert len(result.texts()) == SENTENCES["test"]
