"""Operations of every kind, small enough to enumerate, and their plans on every machine."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import contract as ct
from contract.descriptors.operations import OperationDescriptor
from contract.descriptors.operators import BinaryOperator, Operator
from contract.machines.cpu import COMPILED, HOST
from contract.machines.gpu import architecture_of
from contract.plan.steps import Plan
from contract.planner.planner import make_plan

EXTENTS = {"a": 6, "b": 5, "c": 4, "i": 3, "k": 8, "l": 2, "m": 7, "o": 1, "z": 0}
# On the host small products are left to loops: without that limit they have panels and tiles too.
MACHINES = (
    replace(HOST, loop_product=0),
    replace(COMPILED, loop_product=0),
    architecture_of(60),
    architecture_of(90),
)
RANKS = (0, 2, 5)


def operand(
    modes: str,
    dtype: str = "float64",
    operator: Operator = Operator.IDENTITY,
    strides: tuple[int, ...] | None = None,
    extents: dict[str, int] | None = None,
) -> ct.Operand:
    """Packed column-major unless ``strides`` are given."""
    sizes = EXTENTS if extents is None else EXTENTS | extents
    shape = tuple(sizes[mode] for mode in modes)
    return ct.Operand(ct.TensorDescriptor(shape, strides, dtype), modes, operator)


def contraction(text: str, dtype: str = "float64", **options: object) -> ct.Contraction:
    left, right = text.split("->")
    inputs = tuple(operand(term, dtype) for term in left.split(","))
    return ct.Contraction(inputs, operand(right, dtype), **options)


def operations() -> Iterator[OperationDescriptor]:
    """Contractions, reductions and elementwise operations with what each may have."""
    for text in ("abk,kc->bca", "kam,bkm->ab", "km,mb->kb", "abl,bkl->akl", "ab,ab->", "a,b->ab"):
        yield contraction(text)
    yield contraction("ab,bc,cm->am")
    yield contraction("ab,bc,ck,km->am")
    yield contraction("abk,kc,bcm->am", "complex64", free_layout=True)
    yield contraction("ab,bo->oa", "float32")
    yield contraction("az,zb->ab")
    yield contraction("za,ab->zb")
    yield contraction("aab,b->a")
    yield contraction("abc->cb", "int32")
    for kind in (ct.ComputeType.TF32, ct.ComputeType.BF16X9):
        yield contraction("kab,mk->mab", "float32", compute=kind)
    yield contraction("kab,mk->mab", "float16")
    yield contraction("kab,mk->mab", compute=ct.ComputeType.INT8X8)
    yield ct.Contraction(
        (operand("ka", "float16"), operand("kb", "float32", Operator.TANH)),
        operand("ab", "float32"),
        operand("ba", "float32"),
    )
    yield ct.Contraction(
        (operand("akb", "complex128", Operator.CONJ), operand("kc", "float64", Operator.SQRT)),
        operand("abc", "complex128"),
        operand("abc", "complex128", Operator.CONJ),
    )
    strided = operand("ak", strides=(-3, 40))
    yield ct.Contraction((strided, operand("kb")), operand("ab", strides=(11, 2)))
    broadcast = operand("ak", strides=(1, 0), extents={})
    yield ct.Contraction((broadcast, operand("kb")), operand("ab"))
    yield ct.Contraction((operand("ab"), operand("bc")), operand("aac", extents={}), operand("aac"))
    yield ct.Reduction(
        (operand("abk", "float32"),), operand("b", "float32"), operand("b", "float32")
    )
    yield ct.Reduction((operand("abk"),), operand("kb"), operator=BinaryOperator.MAX)
    yield ct.ElementwiseOperation((operand("abc", "float32"),), operand("cab", "float16"))
    padding = ct.Padding((1, 0, 2), (0, 3, 1), -0.0)
    padded = operand("cab", extents={"c": 5, "a": 9, "b": 8})
    yield ct.ElementwiseOperation((operand("abc"),), padded, padding=padding)
    terms = operand("ab"), operand("ba", "float64", Operator.NEG), operand("a")
    operators = BinaryOperator.MUL, BinaryOperator.ADD
    yield ct.ElementwiseOperation(terms, operand("ab"), operators)
    yield ct.ElementwiseOperation(terms[:2], operand("ba"), operators[:1], free_layout=True)


@cache
def plans() -> tuple[Plan, ...]:
    """Candidates of every operation on the host and on GPUs, each plan once."""
    found = (
        plan for machine in MACHINES for each in operations() for plan in candidates(each, machine)
    )
    return tuple(dict.fromkeys(found))


def candidates(operation: OperationDescriptor, machine: object) -> Iterator[Plan]:
    for rank in RANKS:
        try:
            yield make_plan(operation, ct.PlanPreference(kernel_rank=rank), machine)
        except ct.NotSupportedError:
            return


# --- changes -------------------------------------------------------------------------------------

Path = tuple[str | int, ...]


def numbers(document: Any, at: Path = ()) -> Iterator[tuple[Path, int | float]]:
    """Every number of a JSON document and where it stands; true and false are none."""
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from numbers(value, (*at, key))
    elif type(document) in (int, float):
        yield at, document


def changed(document: Any, at: Path, value: Any) -> Any:
    """A copy of the document with ``value`` at a place."""
    if not at:
        return value
    copy = document.copy()
    copy[at[0]] = changed(document[at[0]], at[1:], value)
    return copy


def another(number: int | float, rng: Random) -> int | float:
    """A number near or far from the given one, of the same type."""
    near = [number + 1, number - 1, number + 64, 2 * number, -number, number // 2, 0, 1, 10**12]
    return type(number)(rng.choice([each for each in near if each != number]))
