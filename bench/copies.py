"""Bytes that networks copy to bring operands into order: ours and opt_einsum's, on one path.

Ours are read off the plan for BLAS and panels (tiles permute nothing): permutations, and what is
packed into panels. opt_einsum multiplies with numpy.tensordot, which copies an operand unless its
transposition can be reshaped in place.
``python -m bench.copies`` prints both for every network.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import opt_einsum

from bench.expressions import packed_operands
from bench.networks import NETWORKS, Network
from bench.reference import Path, split
from contract import Contraction, PlanPreference
from contract.plan.steps import Gett, Panels, Permute, Plan, Step, step_bytes
from contract.planner.paths import Pair, pairs_of
from contract.planner.planner import make_plan

Array = np.ndarray[Any, Any]


def path_of(network: Network) -> Path:
    """The path opt_einsum finds by default."""
    terms, _ = split(network.text)
    shapes = [tuple(network.extents[x] for x in term) for term in terms]
    found, _ = opt_einsum.contract_path(network.text, *shapes, shapes=True)
    return [tuple(group) for group in found]


def plan_of(network: Network, path: Path) -> Plan:
    """Our plan on column-major operands; the layout of the result is free."""
    dtype = "complex128" if network.complex else "float64"
    operands = packed_operands(network.text, network.extents, dtype)
    operation = Contraction(*operands, free_layout=True)
    return make_plan(operation, PlanPreference(path=tuple(path)))


def copied_bytes(plan: Plan) -> int:
    """Bytes read and written by permutations, and by packing and unpacking panels."""
    return sum(_copied(plan, step) for step in plan.steps)


def _copied(plan: Plan, step: Step) -> int:
    match step:
        case Permute():
            return step_bytes(plan, step)
        case Gett(blocking=Panels() as panels):
            packed = zip(
                (panels.pack_a, panels.pack_b, panels.pack_d), (step.a, step.b, step.d), strict=True
            )
            return sum(2 * plan.slots[slot].bytes for flag, slot in packed if flag)
    return 0


def tensordot_bytes(network: Network, path: Path) -> int:
    """What numpy.tensordot reads and writes to copy operands, where opt_einsum calls it."""
    terms, output = split(network.text)
    labels = list(network.extents)
    inputs = [frozenset(map(labels.index, term)) for term in terms]
    kept = frozenset(map(labels.index, output))
    sizes = [network.extents[label] for label in labels]
    itemsize = 16 if network.complex else 8
    tensors = [_Seen(tuple(map(labels.index, term)), sizes, "F") for term in terms]
    copied = 0
    for pair in pairs_of(inputs, kept, sizes, tuple(path)):
        a, b = tensors[pair.left], tensors[pair.right]
        copied += 2 * itemsize * _tensordot(a, b, pair)
        modes = (*(m for m in a.modes if m in pair.modes), *(m for m in b.modes if m in pair.modes))
        tensors.append(_Seen(tuple(dict.fromkeys(modes)), sizes, "C"))
    return copied


class _Seen:
    """A tensor's modes and strides: an array whose memory nobody touches."""

    def __init__(self, modes: tuple[int, ...], sizes: Sequence[int], order: Any) -> None:
        self.modes = modes
        self.array: Array = np.empty([sizes[mode] for mode in modes], np.int8, order)

    def copied_as(self, rows: Sequence[int], columns: Sequence[int]) -> int:
        """Elements copied to make a matrix of these modes."""
        axes = [self.modes.index(mode) for mode in chain(rows, columns)]
        shape = [
            prod(self.array.shape[self.modes.index(m)] for m in each) for each in (rows, columns)
        ]
        try:
            self.array.transpose(axes).reshape(shape, copy=False)
        except ValueError:
            return self.array.size
        return 0


def _tensordot(a: _Seen, b: _Seen, pair: Pair) -> int:
    """Elements copied; a product with modes that all three have goes to numpy.einsum instead."""
    shared = [mode for mode in a.modes if mode in b.modes]
    if not shared or set(shared) & pair.modes:
        return 0
    rows = [mode for mode in a.modes if mode not in shared]
    columns = [mode for mode in b.modes if mode not in shared]
    return a.copied_as(rows, shared) + b.copied_as(shared, columns)


def main() -> None:
    """One row for each network."""
    for network in NETWORKS:
        path = path_of(network)
        ours = copied_bytes(plan_of(network, path)) / 1e6
        theirs = tensordot_bytes(network, path) / 1e6
        print(f"{network.name:18s} ours {ours:10.3f} MB   tensordot {theirs:10.3f} MB")


if __name__ == "__main__":
    main()
