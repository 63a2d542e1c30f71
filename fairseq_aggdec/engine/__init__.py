"""A fairseq model that reads windows: packed weights, the KV cache, block heads, and the verifier in front of them."""
