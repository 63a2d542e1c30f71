"""What the plugin's tasks do with checkpoints: they are checked before fairseq builds anything from them."""

from typing import Any, ClassVar

from fairseq.tasks import FairseqTask

from fairseq_aggdec.checkpoints import check_built, check_files, check_when_loaded, path_of
from fairseq_aggdec.models.from_hydra import as_namespace, keep_options
from fairseq_aggdec.stored_options import check_options


class CheckedModels(FairseqTask):
    """Mixed in before a task whose configuration names checkpoints by ``model_paths``.

    Attributes:
        kind: the name that the task is registered by; tasks derived from it have their own.
        models_built: from checkpoints.
    """

    kind: ClassVar[str]
    models_built = 0

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """fairseq's, after the files that the command names have been checked."""
        check_files(cfg, cls.kind)
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's, for models of the plugin from a configuration of fairseq-hydra-train too.

        Raises:
            CheckpointError: options of a checkpoint that hold code, or that belong to another task.
        """
        path = path_of(getattr(self.cfg, "model_paths", None), self.models_built)
        if from_checkpoint:
            check_options({"cfg": {"model": cfg}}, path)
            check_built(cfg, path)
        args = as_namespace(cfg)
        model = super().build_model(args, from_checkpoint)
        keep_options(cfg, args)
        if from_checkpoint:
            self.models_built += 1
            dictionaries = {"source": self.source_dictionary, "target": self.target_dictionary}
            check_when_loaded(model, dictionaries, self.cfg.data, path)
        return model
