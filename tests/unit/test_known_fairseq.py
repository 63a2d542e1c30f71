"""known_fairseq: any fairseq with what is read of it; changed functions are told from known ones."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import search
from fairseq.data import Dictionary

from fairseq_aggdec.models import blockwise_transformer  # noqa: F401
from fairseq_aggdec.options import stock_generator
from fairseq_aggdec.startup import known_fairseq as known
from fairseq_aggdec.startup.known_fairseq import READS, changed, digest, functions, source

ATTENTION = "fairseq.modules.multihead_attention"


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch):
    """Calls with texts to replace in a module: the names of the functions that count as changed then."""

    def found(module: str, *replaced: tuple[str, str]) -> frozenset[str]:
        text = source(module)
        assert text is not None
        text = "\n".join(text.splitlines())
        for old, new in replaced:
            assert old in text, old
            text = text.replace(old, new)
        monkeypatch.setattr(known, "source", lambda module: text)
        known._changed.cache_clear()
        return known._changed(module)

    yield found
    known._changed.cache_clear()


def test_all_that_is_read_of_this_fairseq_is_known() -> None:
    known.check_fairseq()
    for module, _, _ in READS:
        assert known._changed(module) == frozenset(), module
    assert known.changed_function() is None


def test_an_older_pytorch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known.check_pytorch()
    monkeypatch.delattr(torch.serialization, "get_unsafe_globals_in_checkpoint")
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    with pytest.raises(
        ImportError, match=r"PyTorch 2\.4\.1 .*CVE-2025-32434.* install PyTorch 2\.6 or later"
    ):
        known.check_pytorch()


def test_a_changed_method_is_named(fork) -> None:
    text = source(ATTENTION)
    assert text is not None
    assert fork(ATTENTION, ("q *= self.scaling", "q *= self.scaling * 1.0")) == {
        "MultiheadAttention.forward"
    }
    from fairseq.modules import MultiheadAttention

    assert changed(MultiheadAttention, "forward")
    assert not changed(MultiheadAttention, "reorder_incremental_state")


def test_a_method_that_nobody_calls_is_no_change(fork) -> None:
    from fairseq.modules import MultiheadAttention

    new = (
        "    def drawn(self):\n        return 1\n\n    def {}(self, *found):\n        return 2\n\n"
    )
    place = "    def reorder_incremental_state("
    fork(ATTENTION, (place, new.format("__call__") + place))
    assert not changed(MultiheadAttention, "drawn")
    assert changed(MultiheadAttention, "__call__")  # in place of nn.Module's


def test_style_is_no_change(fork) -> None:
    """Comments, docstrings, annotations, ends of lines and another formatter's lines."""
    text = source(ATTENTION)
    assert text is not None
    assert digest(text.replace("\n", "\r\n")) == digest(text)
    old = "q *= self.scaling"
    assert not fork(ATTENTION, (old, f"{old}  # scaled"), ("tgt_len, bsz, embed_dim = query.size()",
                    "(tgt_len, bsz, embed_dim) = (\n            query.size()\n        )"))  # fmt: skip


def test_a_changed_function_of_a_module_is_named(fork) -> None:
    fork("fairseq.utils", ("tensor.ne(padding_idx).int()", "tensor.ge(padding_idx).int()"))
    assert known.changed_function() == "fairseq.utils.make_positions"


def test_a_module_without_source_counts_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "source", lambda module: None)
    known._changed.cache_clear()
    try:
        assert "BeamSearch.step" in known._changed("fairseq.search")
    finally:
        known._changed.cache_clear()


def test_each_listed_module_has_forms() -> None:
    forms = known._forms()
    for module, names, _ in READS:
        assert forms["files"][module], module
        found = functions(module, source(module) or "")
        for name in names:
            methods = [full for full in found if full.split(".")[0] == name]
            assert methods or not hasattr(sys.modules[module], name) or "Alignment" in name, name


def test_missing_fairseq_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "installed", list)
    monkeypatch.delitem(sys.modules, "fairseq")
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(
        ImportError, match=r"fairseq is not installed\. .*pip install ..\[fairseq\]"
    ):
        known.check_fairseq()


def test_two_fairseqs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fairseq", "ve_fairseq", "fairseq_fixed"):
        folder = tmp_path / f"{name}-0.12.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.12.9\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"3 distributions .* fairseq 0\.12\.9, fairseq-fixed 0"):
        known.check_fairseq()


def test_a_broken_fairseq_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fairseq").mkdir()
    text = "raise ValueError(\"mutable default <class 'X'> for field common is not allowed: use\")"
    (tmp_path / "fairseq" / "__init__.py").write_text(text)
    monkeypatch.delitem(sys.modules, "fairseq")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match=r"failed \(mutable default .*\): .* does not run here\. "
    ):
        known.check_fairseq()


def test_lengths_of_sources_without_their_end_are_left_to_fairseq(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As 0.12.2 counts them for --match-source-len."""
    beam = search.LengthConstrainedBeamSearch(Dictionary(), 1, 0, 1, 0)
    generator = SimpleNamespace(search=beam, eos=beam.eos, match_source_len=True)
    assert stock_generator._search_gap(generator) is None
    monkeypatch.setattr(stock_generator, "COUNTS_AS_GIVEN", False)
    assert "without </s>" in stock_generator._search_gap(generator)
