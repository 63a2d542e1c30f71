"""A folder of texts, a sentence on each line, on all cores of a cluster. Needs Ray: pip install 'ray[data]'.

python examples/ray_data.py IN OUT
"""

import sys

import ray

import fairseq_aggdec

FOLDER = "checkpoints/ua_gec"
CORES = 2  # of each process that decodes


class Correct:
    """Loads the model once a process, and decodes batches of rows."""

    def __init__(self):
        import torch

        torch.set_num_threads(CORES)
        self.model = fairseq_aggdec.from_pretrained(
            f"{FOLDER}/checkpoint.pt",
            FOLDER,
            decoding="iad",
            spm=f"{FOLDER}/spm.model",
            device="cpu",
        )

    def __call__(self, batch):
        return {**batch, "corrected": self.model.translate(list(batch["text"]))}


texts, output = sys.argv[1:]
workers = max(1, int(ray.cluster_resources()["CPU"]) // CORES) if ray.is_initialized() else 1
rows = ray.data.read_text(texts)
rows.map_batches(Correct, concurrency=workers, num_cpus=CORES, batch_size=256).write_json(output)
