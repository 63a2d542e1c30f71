"""What recipes at the paper's size train with, to the digit; nothing is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ROOT
from tests.cli.wmt_files import calls, recipe, recorders, value

# Table 13 of Ge et al., the authors' training script and, for the small set, their drafter of it.
AUTOREGRESSIVE = (
    "--max-tokens 20000 --update-freq 32 --lr 0.001 --adam-betas (0.9, 0.99) --weight-decay 0.00001 "
    "--clip-norm 3.0 --warmup-updates 4000 --max-update 100000"
)
DRAFTER = "--adam-betas (0.9, 0.999) --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5.0"
GAD = {
    "wmt14-en-de": (
        ["transformer_vaswani_wmt_en_de_big", "transformer", "nar_drafter_base"],
        ["0.3", "0.1", "0.1"],
        "--max-tokens 4096 --update-freq 32 --lr 0.0005 --warmup-updates 10000 --max-update 300000",
    ),
    "wmt16-en-ro": (
        ["transformer", "transformer", "nar_drafter_base"],
        ["0.1", "0.1", "0.2"],
        "--max-tokens 4096 --update-freq 16 --lr 0.001 --warmup-updates 4000 --max-update 50000",
    ),
}


def trained(commands: list[str]) -> list[str]:
    return [line for line in commands if line.startswith("fairseq-train")]


@pytest.mark.parametrize("data_set", GAD)
def test_generalized_aggressive_decoding(tmp_path: Path, data_set: str) -> None:
    archs, dropouts, schedule = GAD[data_set]
    commands = calls(tmp_path, "gad_wmt", data_set, GPUS="1")
    found = trained(commands)
    assert [value(line, "--arch") for line in found] == archs
    assert [value(line, "--dropout") for line in found] == dropouts
    assert all(AUTOREGRESSIVE in line for line in found[:2])
    assert schedule in found[2]
    assert DRAFTER in found[2]
    assert value(found[2], "--block-size") == "25"
    direction = data_set.split("-", 1)[1]
    begins = value(found[2], "--init-encoder-from")  # as the authors' encoder_initial.py has it
    assert begins.endswith(f"{data_set}/verifier-{direction}-model/model.pt")

    # Table 8: big models of the same teacher, beside those
    work, env = tmp_path / data_set, {"PYTHON": str(tmp_path / "bin" / "python"), "GPUS": "1"}
    result = recipe("gad_wmt", data_set, work, SIZE="big", CALLS=str(tmp_path / "calls"), **env)
    assert f"stage teacher-{direction}-model: done already" in result.stderr
    big = (tmp_path / "calls").read_text().splitlines()[len(commands) :]
    assert [value(line, "--arch") for line in trained(big)] == [
        *["transformer_vaswani_wmt_en_de_big", "nar_drafter_big"]
    ]
    decoded = [line for line in big if line.startswith("fairseq-generate")]
    assert len(decoded) == 7  # the teacher's is there
    for line in decoded:
        assert value(line, "--path") == f"{work}/big-verifier-{direction}-model/model.pt"
    assert value(decoded[-1], "--drafter-path") == f"{work}/big-drafter-{direction}-model/model.pt"
    assert value(decoded[-1], "--acceptance") == "top-beta:5:6.0"
    assert value(commands[-1], "--output") == f"{work}/results-{direction}"
    assert value(big[-1], "--output") == f"{work}/big-results-{direction}"


def test_models_that_are_ready_are_not_trained(tmp_path: Path) -> None:
    """A verifier and a drafter: nothing; a teacher: the other two; teacher and verifier: the drafter."""
    names = ("TEACHER", "VERIFIER", "DRAFTER")
    given = {name: str(tmp_path / f"{name}.pt") for name in names}
    for path in given.values():
        Path(path).touch()
    for number, (wanted, count) in enumerate(((names[1:], 0), (names[:1], 2), (names[:2], 1))):
        (folder := tmp_path / str(number)).mkdir()
        env = {name: given[name] for name in wanted}
        commands = calls(folder, "gad_wmt", "wmt14-en-de", GPUS="1", SUBWORDS="@@", **env)
        assert len(trained(commands)) == count
        decoded = [
            line
            for line in commands
            if line.startswith("fairseq-generate") and "--decoding gad" in line
        ]
        assert len(decoded) == 3
        for line in decoded:
            assert value(line, "--path") == env.get("VERIFIER", value(line, "--path"))
            assert value(line, "--drafter-path") == env.get(
                "DRAFTER", value(line, "--drafter-path")
            )
        assert sum("--subwords @@" in line for line in commands) == 1
    gone = recipe("gad_wmt", "wmt14-en-de", tmp_path / "3" / "wmt14-en-de", VERIFIER="gone.pt")
    assert gone.returncode != 0


def test_block_heads_as_in_the_paper(tmp_path: Path) -> None:
    """Dense heads on Multi30k, one drawn per minibatch; a model that is there is not audited again."""
    work, output = tmp_path / "work", tmp_path / "table"
    base = work / "model-de-en" / "model.pt"
    there = work / "blockwise-both-4-de-en" / "checkpoint_last.pt"
    for made in (base, there):
        made.parent.mkdir(parents=True)
        made.touch()
    Path(f"{output}-equality-both-4.json").touch()
    env = recorders(tmp_path) | {"WORK": str(work), "OUTPUT": str(output), "GPUS": "1"}
    env |= {"PAPER": "1", "SETTINGS": "regular", "NAME": "-paper", "BLOCK_SIZES": "4"}
    result = recipe("blockwise_multi30k", ANALYSES="audit", **env)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr.count("is there already, kept") == 1
    learnt, table, audit = (tmp_path / "calls").read_text().splitlines()
    assert (value(learnt, "--head-layout"), value(learnt, "--head-loss")) == ("dense", "sample")
    assert "--freeze-base" in learnt and "--identity-first-head" not in learnt
    model = f"{work}/blockwise-regular-paper-4-de-en/checkpoint_last.pt"
    assert f" regular/1={base} both/4={there} regular-paper/4={model} " in table
    assert (value(audit, "--path"), value(audit, "--reference")) == (model, str(base))
    refused = recipe("blockwise_multi30k", ANALYSES="audit table", **env)
    assert refused.returncode == 2
    assert "unknown analysis 'table' in ANALYSES (choose from: audit trace)" in refused.stderr


def test_interleaved_decoding(tmp_path: Path) -> None:
    """Appendix A of Zhang et al.; five checkpoints 5,000 updates apart."""
    found = trained(calls(tmp_path, "interleaved_wmt", "wmt14-en-de", GPUS="1"))
    assert found
    for line in found:
        assert (
            "--dropout 0.1 --attention-dropout 0.1 --adam-betas (0.9, 0.98) --adam-eps 1e-8" in line
        )
        assert (
            "--save-interval-updates 5000 --keep-interval-updates 5 --no-epoch-checkpoints" in line
        )
        assert "--lr 0.0007 --warmup-updates 4000" in line


def test_super_resolution_in_the_papers_setting(tmp_path: Path) -> None:
    """The setting is what the header prints: tensor2tensor's img2img_transformer_b3."""
    (path,) = (ROOT / "scripts" / "recipes").rglob("super_resolution.sh")
    header = path.read_text().split("half an hour\n")[1].split("  the paper's setting")[0]
    printed = " ".join(line.strip("# \\") for line in header.splitlines())
    settings = {
        "MAX_UPDATE": "1000000",
        "WARMUP": "12000",
        "HEAD_UPDATE": "250000",
        "DROPOUT": "0.1",
    }
    settings |= {"BATCH": "16", "SCHEDULER": "inverse_sqrt", "CLIP": "0", "NOISE": "0"}
    for name, setting in settings.items():
        assert f" {name}={setting} " in printed
    env = recorders(tmp_path) | {"WORK": str(tmp_path / "work")}
    recipe("super_resolution", **env, **settings, GPUS="1", BLOCK_SIZES="2")
    base, *heads = trained((tmp_path / "calls").read_text().splitlines())
    for line in (base, *heads):
        assert (value(line, "--dropout"), value(line, "--batch-size")) == ("0.1", "16")
        assert (value(line, "--clip-norm"), value(line, "--lr-scheduler")) == ("0", "inverse_sqrt")
        assert "--total-num-update" not in line
    assert len(heads) == 2
