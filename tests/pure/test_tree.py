"""The contraction tree of a plan: its parts, its costs, and where they are drawn."""

from math import prod

import pytest

import contract as ct
from contract.explain.tree import Node, contraction_tree
from contract.planner.planner import make_plan


def operand(modes: str, extents: dict[str, int]) -> ct.Operand:
    return ct.Operand(ct.TensorDescriptor(tuple(extents[m] for m in modes)), modes)


def tree(text: str, with_c: bool = False) -> tuple[Node, ...]:
    left, output = text.split("->")
    result = operand(output, CHAIN)
    inputs = tuple(operand(modes, CHAIN) for modes in left.split(","))
    return contraction_tree(make_plan(ct.Contraction(inputs, result, result if with_c else None)))


CHAIN = {"a": 8, "b": 9, "c": 10, "d": 11, "e": 12}


def test_every_product_is_a_node_above_its_parts() -> None:
    nodes = tree("ab,bc,cd,de->ae")
    assert [node.name for node in nodes[:4]] == ["T0", "T1", "T2", "T3"]
    assert nodes[-1].name == "D"
    used = sorted(part for node in nodes for part in node.parts)
    assert used == list(range(len(nodes) - 1)), "each tensor is read once, D never"
    for node in nodes:
        below = [nodes[part] for part in node.parts]
        assert node.y == max((each.y + 1 for each in below), default=0)
        if below:
            assert min(x.x for x in below) <= node.x <= max(x.x for x in below)


def test_operands_stand_side_by_side() -> None:
    nodes = tree("ab,bc,cd,de->ae")
    assert sorted(node.x for node in nodes[:4]) == [0, 1, 2, 3]


def test_costs_are_those_of_the_plan() -> None:
    extents = CHAIN
    shapes = [operand(modes, extents) for modes in ("ab", "bc", "cd", "de")]
    plan = make_plan(ct.Contraction(tuple(shapes), operand("ae", extents)))
    nodes = contraction_tree(plan)
    assert sum(node.flops for node in nodes) == plan.flops
    assert sum(node.moved for node in nodes) == plan.moved_bytes
    assert sum(node.seconds for node in nodes) == pytest.approx(plan.seconds)
    for node in nodes:
        assert node.elements == prod(extents[mode] for mode in node.modes)


def test_c_is_a_part_of_the_result() -> None:
    nodes = tree("ab,bc->ac", with_c=True)
    assert {nodes[part].name for part in nodes[-1].parts} == {"T0", "T1", "C"}


def test_a_diagonal_is_one_tensor() -> None:
    extents = {"a": 5, "b": 6}
    inputs = operand("ab", extents), operand("b", extents)
    output = ct.Operand(ct.TensorDescriptor((5, 5)), "aa")
    nodes = contraction_tree(make_plan(ct.Contraction(inputs, output)))
    assert [node.name for node in nodes].count("D") == 1
    (result,) = (node for node in nodes if node.name == "D")
    assert result.elements == 25
