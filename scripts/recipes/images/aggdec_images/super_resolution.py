"""``--task super_resolution``: write a high-resolution image, intensity by intensity, given a low-resolution one.

The image task of Stern et al., section 7.2. Both images are sequences of intensities in raster-scan order, red, green
and blue of a pixel together, in one dictionary of 256 consecutive intensities: an ordinary sequence-to-sequence task
for fairseq's models, criterions and generators, with targets of known length.
"""

import logging
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import register_task
from omegaconf import II, OmegaConf, open_dict
from torch import Tensor

from aggdec_images.data import (
    INTENSITIES,
    ImageFormat,
    intensity_dictionary,
    intensity_offset,
    read_format,
    read_split,
    to_image,
    to_tokens,
)
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.models.options import option
from fairseq_aggdec.stored.checkpoints import check_files
from fairseq_aggdec.tasks.decoding_task import DecodingTask
from fairseq_aggdec.tasks.translation_aggdec import CheckpointPaths

logger = logging.getLogger(__name__)


@dataclass
class SuperResolutionConfig(DecodingConfig, CheckpointPaths):
    """Settings: where the images are (sizes and channels stand beside them) and how to decode."""

    data: Optional[str] = option(None, "folder made by scripts/recipes/images/make_images.py")
    train_subset: str = II("dataset.train_subset")
    input_noise: float = option(
        0.0,
        "training: the intensities that the decoder reads are off by normal noise, its deviation drawn "
        "for each image between 0 and this; a model that has met its own errors leans on the input image more",
    )


class ImageSequences(torch.utils.data.Dataset[Tensor]):
    """Images as sequences of tokens that end in ``</s>``.

    Args:
        images: uint8 (N, H, W, C).
        offset: index of intensity 0.
        eos: index of ``</s>``.
    """

    def __init__(self, images: np.ndarray, offset: int, eos: int):
        self.images, self.offset, self.end = images, offset, torch.tensor([eos])
        self.sizes = np.full(len(images), images[0].size + 1)

    def __getitem__(self, index: int) -> Tensor:
        """int64 (H*W*C + 1,)."""
        return torch.cat([to_tokens(self.images[index], self.offset), self.end])

    def __len__(self) -> int:
        return len(self.images)


@register_task("super_resolution", dataclass=SuperResolutionConfig)
class SuperResolutionTask(DecodingTask):
    """Image super-resolution as sequence-to-sequence.

    Attributes:
        form: sizes of the images.
        dictionary: of source and target.
        offset: index of intensity 0.
    """

    kind = "super_resolution"
    cfg: SuperResolutionConfig

    def __init__(self, cfg: SuperResolutionConfig, form: ImageFormat):
        super().__init__(cfg)
        self.form = form
        self.dictionary = intensity_dictionary()
        self.offset = self.first_number = intensity_offset(self.dictionary)

    @classmethod
    def setup_task(cls, cfg: SuperResolutionConfig, **kwargs: Any) -> "SuperResolutionTask":
        if not cfg.data:
            raise ValueError("--task super_resolution needs the folder of the prepared images")
        if cfg.input_noise < 0:
            raise ValueError(f"--input-noise {cfg.input_noise}: it must be at least 0")
        form = read_format(cfg.data)
        check_files(cfg, cls.kind)
        return cls(cfg, form)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary

    def max_positions(self) -> Tuple[int, int]:
        """Lengths of source and target, ``</s>`` included."""
        return self.form.source_length + 1, self.form.target_length + 1

    def load_dataset(self, split: str, **kwargs: Any) -> None:
        assert self.cfg.data is not None
        low, high = read_split(self.cfg.data, split, self.form)
        logger.info("%s %s: %d images", Path(self.cfg.data).name, split, len(low))
        source, target = (
            ImageSequences(images, self.offset, self.dictionary.eos()) for images in (low, high)
        )
        self.datasets[split] = LanguagePairDataset(
            source,
            source.sizes,
            self.dictionary,
            target,
            target.sizes,
            self.dictionary,
            shuffle=split != "test",
        )

    def build_dataset_for_inference(
        self, src_tokens: List[Tensor], src_lengths: List[int], **kwargs: Any
    ) -> LanguagePairDataset:
        return LanguagePairDataset(
            src_tokens, src_lengths, self.dictionary, tgt_dict=self.dictionary, **kwargs
        )

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The model, with exactly as many positions as the images have intensities."""
        source, target = self.max_positions()
        needed = {"max_source_positions": source, "max_target_positions": target}
        for name, positions in needed.items():
            found = getattr(cfg, name, None)
            if from_checkpoint and found is not None and found != positions:
                raise ValueError(
                    f"the model was trained on other images ({name.replace('_', ' ')} {found}) than those in "
                    f"{self.cfg.data} ({positions})"
                )
        with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
            for name, positions in needed.items():
                setattr(cfg, name, positions)
        return super().build_model(cfg, from_checkpoint)

    def train_step(self, sample: Any, *args: Any, **kwargs: Any) -> Any:
        """fairseq's hook; what the decoder reads is made noisy, what it is to write is not."""
        if sample and self.cfg.input_noise > 0:
            net_input = sample["net_input"]
            read = noisy(net_input["prev_output_tokens"], self.cfg.input_noise, self.offset)
            sample = {**sample, "net_input": {**net_input, "prev_output_tokens": read}}
        return super().train_step(sample, *args, **kwargs)

    def build_generator(self, models: Any, args: Namespace, *others: Any, **options: Any) -> Any:
        """fairseq's hook; the target's length is known, so it is set unless the user did."""
        set_target_length(args, self.form.target_length)
        return super().build_generator(models, args, *others, **options)

    def image(self, tokens: Tensor) -> np.ndarray:
        """A hypothesis or target (H*W*C + 1,) as a high-resolution image, uint8 (H, W, C)."""
        return to_image(tokens, self.form.high_shape, self.offset, self.dictionary.eos())


def noisy(tokens: Tensor, strongest: float, offset: int) -> Tensor:
    """Intensities off by rounded normal noise, kept between 0 and 255; other symbols as they are.

    Args:
        tokens: int64 (B, T).
        strongest: each row has a standard deviation of its own, evenly drawn between 0 and this.
        offset: index of intensity 0, above all other symbols.
    """
    deviation = strongest * torch.rand(len(tokens), 1, device=tokens.device)  # (B, 1)
    error = deviation * torch.randn(tokens.shape, device=tokens.device)  # (B, T)
    moved = (tokens + error.round().long()).clamp(offset, offset + INTENSITIES - 1)
    return torch.where(tokens >= offset, moved, tokens)


def set_target_length(args: Any, length: int) -> None:
    """Sets ``--max-len-a 0 --max-len-b LENGTH --min-len LENGTH`` when none of the three was given (in place).

    Args:
        args: fairseq's generation options; any of them may be missing.
        length: tokens before ``</s>``.
    """
    stock = GenerationConfig()
    default = [(name, getattr(stock, name)) for name in ("max_len_a", "max_len_b", "min_len")]
    if all(getattr(args, name, value) == value for name, value in default):
        args.max_len_a, args.max_len_b, args.min_len = 0, length, length
    else:
        logger.info("--max-len-a, --max-len-b and --min-len are taken as given, images may be cut")
