"""Notation -> modes; acceptance of strings is compared with NumPy in tests/host."""

import pytest

from contract.descriptors.expression import interleaved, mode_extents, parse
from contract.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "ranks", "inputs", "output"),
    [
        ("ij,jk->ik", (2, 2), ((0, 1), (1, 2)), (0, 2)),
        ("ij,jk", (2, 2), ((0, 1), (1, 2)), (0, 2)),
        ("ba", (2,), ((0, 1),), (1, 0)),
        ("ii", (2,), ((0, 0),), ()),
        ("i->ii", (1,), ((0,),), (0, 0)),
        ("", (0,), ((),), ()),
        (" i j , j k -> i k ", (2, 2), ((0, 1), (1, 2)), (0, 2)),
        ("...i,i...->...", (3, 2), ((0, 1, 2), (2, 1)), (0, 1)),
        ("...i", (3,), ((0, 1, 2),), (0, 1, 2)),
        ("...", (0,), ((),), ()),
        ("i...->...", (1,), ((0,),), ()),
    ],
)
def test_texts(
    text: str,
    ranks: tuple[int, ...],
    inputs: tuple[tuple[int, ...], ...],
    output: tuple[int, ...],
) -> None:
    expression = parse(text, len(ranks)).resolve(ranks)
    assert (expression.inputs, expression.output) == (inputs, output)


def test_ellipses_align_at_the_right() -> None:
    expression = parse("...,...").resolve((3, 1))
    assert expression.inputs == ((0, 1, 2), (2,))
    assert expression.labels == ("…2", "…1", "…0")


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [(("b", "a"), "ab"), ((10, 9), "910"), (((1, 2), (1, 1)), "(1, 1)(1, 2)"), (("b", 3), "3b")],
)
def test_implied_output_sorts_the_labels_themselves(
    labels: tuple[object, ...], wanted: str
) -> None:
    expression = interleaved([labels], None).resolve((2,))
    assert "".join(expression.labels[mode] for mode in expression.output) == wanted


def test_printing_is_unambiguous() -> None:
    assert str(parse("ab,bc->ca").resolve((2, 2))) == "ab,bc->ca"
    assert str(interleaved([("row", "x")], ("x",)).resolve((2,))) == "row x->x"


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        ("i1", (2,), "'1'"),
        ("i->j", (1,), "'j'"),
        ("i..j", (2,), r"'\.'"),
        ("......", (2,), "one ellipsis"),
        ("i...->i", (2,), "1 dimensions"),
        ("ij", (3,), "3 dimensions and 2 labels"),
        ("i,j", (1,), "2 terms, 1 operands"),
        ("i->i->i", (1,), "'-'"),
    ],
)
def test_refusals(text: str, ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse(text, len(ranks)).resolve(ranks)


def test_unhashable_labels_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="hashable"):
        interleaved([([],)], None)


def test_extents_broadcast_and_must_agree() -> None:
    assert mode_extents(((0, 1), (1, 2)), ((2, 1), (5, 3)), "ijk") == (2, 5, 3)
    assert mode_extents(((0, 0),), ((4, 4),), "i") == (4,)
    with pytest.raises(InvalidValueError, match="'j': operand 0 has 4, operand 1 has 5"):
        mode_extents(((0, 1), (1, 2)), ((2, 4), (5, 3)), "ijk")
    with pytest.raises(InvalidValueError, match="'i' repeated in operand 0: 1 and 3"):
        mode_extents(((0, 0),), ((1, 3),), "i")
