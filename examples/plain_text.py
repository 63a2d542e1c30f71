"""Sentences in, corrected sentences out."""

import fairseq_aggdec

FOLDER = "checkpoints/ua_gec"

model = fairseq_aggdec.from_pretrained(
    f"{FOLDER}/checkpoint.pt", FOLDER, decoding="iad", spm=f"{FOLDER}/spm.model", device="cpu"
)
for text in model.translate(["Я знаю що ти тут .", "Чому вам не піти до лікаря ?"]):
    print(text)
