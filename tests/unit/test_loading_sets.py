"""What is said of a set that cannot be loaded, taken in parts a number of times, or of words that no model knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecConfig, TranslationAggdecTask
from tests.unit.test_distillation import make_folder


def task(data: Path, times: int) -> TranslationAggdecTask:
    config = TranslationAggdecConfig(
        data=str(data),
        source_lang="src",
        target_lang="tgt",
        upsample_primary=times,
        model_paths="",
        train_subset="train",
        dataset_impl=None,
        required_seq_len_multiple=1,
    )
    found: TranslationAggdecTask = TranslationAggdecTask.setup_task(OmegaConf.structured(config))
    return found


def test_a_set_in_parts_taken_a_negative_number_of_times(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", [[5, 6, 7], [8]]).path
    with pytest.raises(ValueError, match="say --upsample-primary 1"):
        task(data, -1).load_dataset("train", combine=True)
    whole = task(data, 1)
    whole.load_dataset("train", combine=True)
    assert len(whole.dataset("train")) == 4


# A warning of fairseq's reader.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("split", "combine"), [("train", False), ("valid", True)])
def test_a_damaged_set(split: str, combine: bool, tmp_path: Path) -> None:
    """How often a part is taken is not asked where parts are not put together, or there are none."""
    data = make_folder(tmp_path / "data", [[5, 6, 7], [8]]).path
    (data / f"{split}.src-tgt.src.idx").write_bytes(b"MMIDIDX\x00\x00")
    with pytest.raises(ValueError, match=f"the set {split} of .* is empty or damaged"):
        task(data, -1).load_dataset(split, combine=combine)


@pytest.mark.parametrize(("unknown", "warned"), [(2, 1), (1, 0)])
def test_an_input_of_unknown_words_is_told_once(
    unknown: int, warned: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = task(make_folder(tmp_path / "data", [[5, 6, 7], [8]]).path, 1)
    words = found.source_dictionary
    sentence = torch.tensor([*[words.unk()] * unknown, *[5] * (3 - unknown), words.eos()])
    for _ in range(2):
        found.build_dataset_for_inference([sentence], [4])
    said = [r.getMessage() for r in caplog.records]
    assert sum("2 of the first 3 words of the input are unknown" in text for text in said) == warned
