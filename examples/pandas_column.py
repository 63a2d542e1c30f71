"""A column of a table, decoded in batches. Needs pandas."""

import pandas

import fairseq_aggdec

FOLDER = "checkpoints/ua_gec"

model = fairseq_aggdec.from_pretrained(
    f"{FOLDER}/checkpoint.pt", FOLDER, decoding="iad", spm=f"{FOLDER}/spm.model", device="cpu"
)
table = pandas.DataFrame({"text": ["Я знаю що ти тут .", "Чому вам не піти до лікаря ?"]})
table["corrected"] = model.translate(table["text"].tolist(), batch_size=32)
print(table.to_string(index=False))
