"""Several outputs for one sentence, best first, with their scores."""

import fairseq_aggdec

FOLDER = "checkpoints/ua_gec"

model = fairseq_aggdec.from_pretrained(
    f"{FOLDER}/checkpoint.pt", FOLDER, spm=f"{FOLDER}/spm.model", device="cpu"
)
[ranked] = model.generate(["Я знаю що ти тут ."], beam=5, nbest=3)
for one in ranked:
    print(f"{one.score:8.4f}  {one.text}")
