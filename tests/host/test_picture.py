"""The picture of a contraction tree: a file of the kind that its name says."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

import contract as ct
from contract.explain import picture

SHAPES = ((8, 9), (9, 10), (10, 11))


def test_a_picture_names_every_tensor(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    planned = ct.contract_expression("ab,bc,cd->ad", *SHAPES)
    path = tmp_path / "tree.svg"
    table = planned.explain(plot=path)
    assert table == planned.explain()
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    text = path.read_text()
    for name in ("T0[ab]", "T1[bc]", "T2[cd]", "D["):
        assert name in text, name
    again = tmp_path / "again.svg"
    planned.explain(plot=str(again))
    assert again.read_text() == text
    planned.explain(plot=tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_large_trees_have_no_texts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    count = picture.LEGIBLE
    shapes = [(2, 2)] * count
    text = ",".join(f"{chr(500 + i)}{chr(501 + i)}" for i in range(count)) + "->"
    ct.contract_expression(text, *shapes).explain(plot=tmp_path / "tree.svg")
    assert "T0[" not in (tmp_path / "tree.svg").read_text()


def test_other_formats_are_refused(tmp_path: Path) -> None:
    planned = ct.contract_expression("ab,bc,cd->ad", *SHAPES)
    with pytest.raises(ct.InvalidValueError, match=r"\.svg.*tree\.txt"):
        planned.explain(plot=tmp_path / "tree.txt")
    assert not (tmp_path / "tree.txt").exists()


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ct.NotSupportedError, match="matplotlib"):
        ct.contract_expression("ab,bc,cd->ad", *SHAPES).explain(plot=tmp_path / "tree.svg")
