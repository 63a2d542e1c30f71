"""Which words a non-autoregressive Transformer proposes for each position (the baseline of Figure 1)."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

from fairseq_aggdec.lattice.candidates import Special
from scripts.recipes.lattice.recall_table import non_autoregressive
from tests.support import make_batch, make_model, make_task, random_sources

EOS, PAD, BLOCK = 2, 1, 5


def test_a_nat_proposes_what_its_slots_find_likely() -> None:
    """One sentence at a time, padding on the side where training has it; nothing behind the block."""
    task = make_task()
    model = make_model(task, 3, "nar_drafter", block_size=BLOCK)
    sources = random_sources(2, 6)
    words = pad_sequence([torch.tensor(source) for source in sources], True, PAD)
    lengths = torch.tensor([len(source) for source in sources])
    propose = non_autoregressive(model, Special.of(task.target_dictionary))
    tokens, chances = propose(words, lengths, BLOCK + 2, 3)
    assert tokens.shape == chances.shape == (6, BLOCK + 2, 3)
    assert not chances[:, BLOCK:].any()
    slots = torch.full((1, BLOCK), model.decoder.mask_index)
    for row, source in enumerate(sources):
        net_input = make_batch([source])["net_input"]
        features = model(net_input["src_tokens"], net_input["src_lengths"], slots)
        expected = model.decoder.output_layer(features).softmax(-1)[0]  # (k, V)
        best = expected.topk(3)
        assert torch.equal(tokens[row, :BLOCK], best.indices)
        torch.testing.assert_close(chances[row, :BLOCK], best.values, atol=1e-5, rtol=1e-4)
    everything, _ = propose(words, lengths, BLOCK, 10_000)
    assert everything.size(2) == len(task.target_dictionary)
    shorter, _ = propose(words, lengths, 2, 3)
    assert torch.equal(shorter, tokens[:, :2])
