"""The faults that ``scripts/mutants.py`` puts into a copy of the package or into its kernels."""

from scripts import kernel_faults
from scripts.kernel_faults import (
    ACCEPTANCE,
    BEAM,
    BOARD,
    CACHED,
    LOSSLESS,
    RULES,
    TABLES,
    TREES,
    Mutant,
)

MUTANTS = [
    Mutant(
        *("keys are written one place too early", "engine/compiled.py"),
        "[*starts, *widths, *blocks, *tokens, *depths]",
        "[*(max(0, start - 1) for start in starts), *widths, *blocks, *tokens, *depths]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("a token sees the one behind it", "windows/window.py"),
        "places > places[",
        "places > 1 + places[",
        ("tests/unit/test_window.py", CACHED),
    ),
    Mutant(
        *("a hypothesis does not see its ancestors", "search/beam/board.py"),
        "visibility.copy_(visibility.gather(1, parents.unsqueeze(2).expand_as(visibility)))",
        "pass",
        (BOARD,),
    ),
    Mutant(
        *("positions of a tree by place, not by depth", "windows/tree_window.py"),
        "return torch.add(table[self.depths]",
        "return torch.add(table[self.positions]",
        ("tests/unit/test_window.py", BEAM),
    ),
    Mutant(
        *("every drafted token stands", "search/acceptance.py"),
        "return choices == drafted",
        "return choices == choices",
        (ACCEPTANCE, LOSSLESS),
    ),
    Mutant(
        *("top-beta takes one more", "search/acceptance.py"),
        "(better < self.beta)",
        "(better <= self.beta)",
        (ACCEPTANCE,),
    ),
    Mutant(
        *("packed weights stay when training changes them", "engine/plain/watch.py"),
        "return self._moved() or not self.numbers.same()",
        "return False",
        ("tests/unit/test_watch.py", LOSSLESS, CACHED),
    ),
    Mutant(
        *("the cache of another row after sentences left", "engine/kv_cache.py"),
        "self.entries[:, new] = self.entries[:, old]",
        "self.entries[:, new] = self.entries[:, new]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("the padding of another row after sentences left", "engine/kv_cache.py"),
        "self.memory_mask[new] = self.memory_mask[old]",
        "self.memory_mask[new] = self.memory_mask[new]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("keys of an accepted path are not moved", "engine/verifier.py"),
        "        if kept.moved:\n",
        "        if False:\n",
        (TREES,),
    ),
    Mutant(
        *("the end is forced one token late", "search/rules.py"),
        "held: Tensor = spots.outputs >= spots.end",
        "held: Tensor = spots.outputs > spots.end",
        ("tests/equality/test_device_loop.py",),
    ),
    Mutant(
        *("outputs may end one token early", "search/rules.py"),
        "(at < floor)",
        "(at < floor - 1)",
        (RULES,),
    ),
    Mutant(
        *("the penalty of <unk> is a reward", "search/rules.py"),
        "Change(self.unk, -self.penalty)",
        "Change(self.unk, self.penalty)",
        (RULES,),
    ),
    Mutant(
        *("a bias that a norm carries is read as if it were not there", "engine/linear.py"),
        "old.detach().float() - shift.float() @ weight.float()",
        "old.detach().float()",
        ("tests/unit/test_linear.py",),
    ),
    Mutant(
        *("the first n-gram may be repeated", "search/rules.py"),
        "(places >= size - 2)",
        "(places >= size - 1)",
        (RULES,),
    ),
    Mutant(
        *("probabilities of an ensemble are averaged as logarithms", "engine/verifier.py"),
        "return torch.logsumexp(log_probs, dim=0) - math.log(len(outputs))",
        "return log_probs.mean(0)",
        (RULES,),
    ),
    Mutant(
        *("beam search: ends count among twice the beam", "search/beam/board.py"),
        "self._end(rows, best[:, :beam], parents[:, :beam], ending[:, :beam])",
        "self._end(rows, best, parents, ending)",
        ("tests/unit/test_beam_board.py", BOARD),
    ),
    Mutant(
        *("beam search: scores divided by a length without the end", "search/beam/library.py"),
        "options.score(total, len(tokens))",
        "options.score(total, max(1, len(tokens) - 1))",
        (BEAM,),
    ),
    Mutant(
        *("tables: padding may be chosen", "search/compiled/tables.py"),
        "logits[:, request.pad] = -torch.inf",
        "pass",
        (TABLES, BEAM),
    ),
    *kernel_faults.MUTANTS,
]
