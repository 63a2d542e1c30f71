"""What the plugin's tasks do with checkpoints: they are checked before fairseq builds anything from them."""

from typing import Any, ClassVar

from fairseq.tasks import FairseqTask

from fairseq_aggdec.checkpoints import (
    AGGDEC,
    check_built,
    check_files,
    check_when_loaded,
    named,
    path_of,
)
from fairseq_aggdec.models.options import as_namespace, keep_options
from fairseq_aggdec.stored_options import check_options


class CheckedModels(FairseqTask):
    """Mixed in before a task of fairseq, whose configuration may name checkpoints.

    Attributes:
        kind: the name that the task is registered by; tasks derived from it have their own.
        taken_over: the task of somebody else that it stands for; None for those of the plugin.
        models_built: from checkpoints.
    """

    kind: ClassVar[str]
    taken_over: ClassVar[type[FairseqTask] | None] = None
    models_built = 0

    @property
    def settings(self) -> Any:
        """The task's configuration; older tasks keep a namespace under another name."""
        return getattr(self, "args", None) if self.cfg is None else self.cfg

    @property
    def model_paths(self) -> str | None:
        """``--path``, as it was given."""
        return named(self.settings, "model_paths", "path")

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """fairseq's, after the files that the command names have been checked."""
        check_files(cfg, cls.kind, chosen=cls.taken_over is not None)
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's, for models of the plugin from a configuration of fairseq-hydra-train too."""
        path = path_of(self.model_paths, self.models_built)
        if from_checkpoint:
            check_options({"cfg": {"model": cfg}}, path)
            if self.kind == AGGDEC:
                check_built(cfg, path)
        args = as_namespace(cfg)
        model = super().build_model(args, *([True] if from_checkpoint else []))
        keep_options(cfg, args)
        if from_checkpoint:
            self.models_built += 1
            check_when_loaded(model, self, getattr(self.settings, "data", None), path)
        return model
