"""Models of Hugging Face transformers as checkpoints, dictionaries and subword models that plain fairseq reads."""
