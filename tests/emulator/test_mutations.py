"""Bugs planted in the kernels, one at a time: every one has to be noticed.

The checks are small versions of those in test_kernel_*.py; they pass on the kernels as they are.
By default the first bug of each check is planted, with --exhaustive all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.descriptors.compute_types import item_size
from contract.device.kernels import elementwise
from contract.device.kernels.elementwise import elementwise_calls
from contract.device.kernels.gett import gett_calls
from contract.device.kernels.hopper import hopper_calls
from contract.device.kernels.reduce import reduce_calls
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.gpu_kernels import HOPPER_TILES, Arithmetic, tensor_tiles
from contract.machines.gpu_tiles import HopperShare, Share
from contract.machines.tensor_cores import F16, F64_WIDE, TF32, TF32X3
from contract.plan.steps import Elementwise, Gett, Permute, Plan, Reduce, Step
from contract.planner.device.launch import KernelCall
from contract.planner.planner import make_plan

from .device import Device, KernelFault, Options, Schedule
from .launching import run_call
from .products import Case, Data, Layout, case, check, modes

ARCHITECTURE = architecture_of(90)
HOW = Options(Schedule.RANDOM, seed=5)


def tensor(*extents: int, dtype: str = "float32") -> ct.TensorDescriptor:
    return ct.TensorDescriptor(extents, None, dtype, 16)


def lowered(plan: Plan, step: Step) -> tuple[KernelCall, ...]:
    match step:
        case Permute() | Elementwise():
            return elementwise_calls(plan, step, ARCHITECTURE)
        case Reduce():
            return reduce_calls(plan, step, ARCHITECTURE)
    return gett_calls(plan, step, ARCHITECTURE)


def lowered_for_hopper(plan: Plan, step: Gett) -> tuple[KernelCall, ...]:
    """One block, which goes on from tile to tile."""
    (call,) = hopper_calls(plan, step, ARCHITECTURE, HopperShare(HOPPER_TILES[-1]))
    return (replace(call, grid=(1, 1, 1)),)


Change = Callable[[str], str]
Check = Callable[[Device, Change], None]


def compute(
    device: Device,
    operation: ct.Contraction | ct.Reduction | ct.ElementwiseOperation,
    inputs: list[np.ndarray],
    out: np.ndarray,
    change: Change,
    scalars: tuple[complex, complex, complex] = (1, 0, 0),
    lowered: Callable[..., tuple[KernelCall, ...]] = lowered,
) -> np.ndarray:
    """The operation by kernels whose source went through ``change``."""
    plan = make_plan(operation, ct.PlanPreference(algo=algorithm(operation)), architecture_of(90))
    slots = [device.upload(x.ravel("K")) for x in inputs]
    slots.insert(plan.output, device.allocate(out.nbytes))
    for step in plan.steps:
        calls = lowered(plan, step)
        scratch = device.allocate(max(call.scratch for call in calls) + 1)
        for call in calls:
            run_call(device, changed(call, change), slots, scalars, scratch, HOW)
    return slots[plan.output].download(out.dtype, out.shape[::-1]).T


def algorithm(operation: object) -> ct.Algo:
    return ct.Algo.GETT if isinstance(operation, ct.Contraction) else ct.Algo.DEFAULT


def changed(call: KernelCall, change: Change) -> KernelCall:
    """The same launch of another source."""
    return replace(call, headers=(), stub=change(call.source))


# --- checks ---------------------------------------------------------------------------------------


def operand(x: np.ndarray, modes: str, operator: str = "identity") -> ct.Operand:
    return ct.Operand(tensor(*x.shape, dtype=x.dtype.name), modes, ct.Operator(operator))


def numbers(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.asfortranarray(np.random.default_rng(7).integers(-9, 10, shape).astype(dtype))


def check_turned(device: Device, change: Change) -> None:
    for shape in ((36, 68), (5, 3, 67)):
        x = numbers(*shape)
        modes = "abc"[: x.ndim]
        out = np.empty(shape[::-1], "f4", order="F")
        operation = ct.ElementwiseOperation((operand(x, modes),), operand(out, modes[::-1]))
        np.testing.assert_array_equal(compute(device, operation, [x], out, change), x.T)


def check_padded(device: Device, change: Change) -> None:
    x, out = numbers(6, 5), np.empty((9, 7), "f4", order="F")
    padding = ct.Padding((1, 2), (2, 0), 3.0)
    operation = ct.ElementwiseOperation((operand(x, "ab"),), operand(out, "ab"), padding=padding)
    wanted = np.pad(x, ((1, 2), (2, 0)), constant_values=3)
    np.testing.assert_array_equal(compute(device, operation, [x], out, change), wanted)


def check_converted(device: Device, change: Change) -> None:
    x = np.linspace(0.1, 7, 600, dtype="f4").reshape(20, 30).T
    out = np.empty((30, 20), "f2", order="F")
    operation = ct.ElementwiseOperation((operand(x, "ab"),), operand(out, "ab"))
    found = compute(device, operation, [x], out, change)
    np.testing.assert_array_equal(found, x.astype("f2"))


def check_combined(device: Device, change: Change) -> None:
    a, c = numbers(33, 20), numbers(33, 20) - 4
    a[3], c[5] = np.nan, np.nan
    out = np.empty((33, 20), "f4", order="F")
    operation = ct.ElementwiseOperation(
        (operand(a, "ab"), operand(c, "ab")), operand(out, "ab"), (ct.BinaryOperator.MAX,)
    )
    found = compute(device, operation, [a, c], out, change, (1, 0, 2))
    np.testing.assert_array_equal(found, np.maximum(a, 2 * c))


def check_unread(device: Device, change: Change) -> None:
    a, c = numbers(33, 20), np.full((33, 20), np.nan, "f4", order="F")
    operation = ct.ElementwiseOperation(
        (operand(a, "ab"), operand(c, "ab")), operand(a, "ab"), (ct.BinaryOperator.ADD,)
    )
    np.testing.assert_array_equal(compute(device, operation, [a, c], a, change, (1, 0, 0)), a)


def check_reduced(device: Device, change: Change) -> None:
    for shape, text in (((530, 3), "ab->b"), ((3, 77, 5), "abc->ac"), ((70000,), "a->")):
        x = numbers(*shape)
        modes, kept = text.split("->")
        wanted = np.einsum(text, x.astype("f8"))
        out = np.empty(wanted.shape, "f4", order="F")
        operation = ct.Reduction((operand(x, modes),), ct.Operand(tensor(*out.shape), kept))
        found = compute(device, operation, [x], out, change, (2, 0, 0))
        np.testing.assert_array_equal(found, 2 * wanted)


def check_bits(device: Device, change: Change) -> None:
    """Sums of rounded numbers have the bits of one order, fixed by the shape."""
    x = np.random.default_rng(1).standard_normal(9000).astype("f4")
    out = np.empty((), "f4")
    operation = ct.Reduction((operand(x, "a"),), ct.Operand(tensor(), ""))
    found = compute(device, operation, [x], out, change)
    np.testing.assert_array_equal(found, compute(device, operation, [x], out, lambda text: text))


def check_product(device: Device, change: Change) -> None:
    for m, n, k in ((37, 21, 50), (5, 70, 430)):
        a, b = numbers(m, 2, k), numbers(k, n)
        c = numbers(m, n, 2)
        out = np.empty((m, n, 2), "f4", order="F")
        operation = ct.Contraction(
            (operand(a, "axk"), operand(b, "kc")), operand(out, "acx"), operand(c, "acx")
        )
        found = compute(device, operation, [a, b, c], out, change, (2, 3, 0))
        wanted = 2 * np.einsum("axk,kc->acx", a, b) + 3 * c
        np.testing.assert_array_equal(found, wanted)


def check_product_without_addend(device: Device, change: Change) -> None:
    a, b = numbers(9, 12), numbers(12, 7)
    c, out = np.full((9, 7), np.nan, "f4", order="F"), np.empty((9, 7), "f4", order="F")
    operation = ct.Contraction(
        (operand(a, "ak"), operand(b, "kc")), operand(out, "ac"), operand(c, "ac")
    )
    found = compute(device, operation, [a, b, c], out, change)
    np.testing.assert_array_equal(found, a @ b)


def multiplied(
    device: Device, change: Change, made: Case, unit: Arithmetic, parts: int = 1, row: int = 2
) -> None:
    """Tile after tile by one multiprocessor, the first of them whole."""
    size = max(item_size(made.types[x]) for x in "ab")
    tile = tensor_tiles(unit, size, made.dtype)[row]
    k = prod(mode.extent for mode in made.modes if mode.kind == "k")
    part_k = ceil(ceil(k / parts) / tile.k) * tile.k
    chosen = Share(tile, ceil(k / part_k), part_k, whole=1 if parts > 1 else 0)
    calls = gett_calls(made.plan(), made.step(), replace(ARCHITECTURE, multiprocessors=1), chosen)
    data = Data(made, np.random.default_rng(3))
    scalars = (2, 0.5, 0)
    found = data.run(device, [changed(call, change) for call in calls], scalars, HOW)
    check(data, found, scalars)


def check_rounded(device: Device, change: Change) -> None:
    loops = modes(m=(140,), n=(77,), k=(83,))
    made = case(loops, compute=ct.ComputeType.TF32, first=(2, 1), shift=1)
    multiplied(device, change, made, TF32)


def check_nearest(device: Device, change: Change) -> None:
    """Numbers just below the next of tf32: cut, each would be wrong by twice its share."""
    made = case(modes(m=(5,), n=(3,), k=(4,)), compute=ct.ComputeType.TF32, first=(2, 1))
    data = Data(made, np.random.default_rng(3))
    for name in "ab":
        data.held[name][...] = 1 + 2.0**-10 - 2.0**-23
    chosen = Share(tensor_tiles(TF32, 4, "float32")[3], 1, 4)
    (call,) = gett_calls(made.plan(), made.step(), ARCHITECTURE, chosen)
    check(data, data.run(device, [changed(call, change)], (1, 0, 0), HOW), (1, 0, 0))


def check_deep(device: Device, change: Change) -> None:
    """So many k's that both halves of the tables of their offsets are used again; A along k."""
    loops = modes(m=(20,), n=(17,), k=(23, 31))
    made = case(loops, compute=ct.ComputeType.TF32, first=(2,))
    multiplied(device, change, made, TF32, row=3)


def check_infinite(device: Device, change: Change) -> None:
    """The second part of an infinite number is no number; the numbers beside it are."""
    made = case(modes(m=(5,), n=(3,), k=(4,)), compute=ct.ComputeType.TF32X3, first=(2, 1))
    data = Data(made, np.random.default_rng(3))
    for name in "ab":
        data.held[name][...] = 1
    data.held["a"][2, 1] = np.inf
    chosen = Share(tensor_tiles(TF32X3, 4, "float32")[2], 1, 4)
    (call,) = gett_calls(made.plan(), made.step(), ARCHITECTURE, chosen)
    found = data.run(device, [changed(call, change)], (1, 0, 0), HOW)[:15].reshape(5, 3)
    wanted = np.full((5, 3), 4.0)
    wanted[1] = np.inf
    np.testing.assert_array_equal(found, wanted)


def check_in_parts(device: Device, change: Change) -> None:
    loops = modes(m=(70,), n=(66,), k=(230,))
    made = case(loops, compute=ct.ComputeType.TF32X3, first=(2, 1))
    multiplied(device, change, made, TF32X3, parts=3, row=1)


def check_turned16(device: Device, change: Change) -> None:
    """A is turned on its way to the fragments, B lies along k."""
    made = case(modes(m=(72,), n=(40,), k=(48,)), types=dict.fromkeys("abdc", "float16"))
    made = replace(made, layouts=made.layouts | {"b": Layout((2, 1))})
    multiplied(device, change, made, F16)


def check_complex(device: Device, change: Change) -> None:
    reciprocal = {"a": ct.Operator.CONJ}
    loops = modes(m=(33,), n=(20,), k=(19,))
    multiplied(device, change, case(loops, "complex128", operators=reciprocal), F64_WIDE)
    made = case(
        loops, operators={"a": ct.Operator.RCP, "b": ct.Operator.RCP}, compute=ct.ComputeType.TF32
    )
    multiplied(device, change, made, TF32, row=3)


def check_hopper(device: Device, change: Change) -> None:
    """Four tiles of eight steps in six stages; A in panels along k, B in panels along n."""
    a, b = (numbers(*shape, dtype="f2") // 4 for shape in ((16, 70, 30), (16, 16, 30, 6)))
    c, out = numbers(16, 6, 70, dtype="f2"), np.empty((16, 6, 70), "f2", order="F")
    operation = ct.Contraction(
        (operand(a, "pmq"), operand(b, "cpqe")), operand(out, "cem"), operand(c, "cem")
    )
    found = compute(device, operation, [a, b, c], out, change, (2, 3, 0), lowered_for_hopper)
    wanted = 2 * np.einsum("pmq,cpqe->cem", a.astype("f4"), b.astype("f4")) + 3 * c
    np.testing.assert_array_equal(found, wanted)


def check_hopper_groups(device: Device, change: Change) -> None:
    """Five by three tiles of a batch in groups of two along m."""
    few = replace(ARCHITECTURE, multiprocessors=4)
    loops = modes(l=(2,), m=(300,), n=(190,), k=(8,))
    made = case(loops, types=dict.fromkeys("abdc", "float16"), first=(3, 0))
    multiplied_by_hopper(device, change, made, few, HopperShare(HOPPER_TILES[-1]))


def check_hopper_parts(device: Device, change: Change) -> None:
    """Two tiles of which each part has nine steps, one block for all."""
    one = replace(ARCHITECTURE, multiprocessors=1)
    loops = modes(m=(70,), n=(40,), k=(64 * 25,))
    made = case(loops, types=dict.fromkeys("abdc", "float16"), first=(2, 0))
    multiplied_by_hopper(device, change, made, one, HopperShare(HOPPER_TILES[-1], 3))


def multiplied_by_hopper(
    device: Device, change: Change, made: Case, architecture: Architecture, share: HopperShare
) -> None:
    data, scalars = Data(made, np.random.default_rng(3)), (2, 0.5, 0)
    calls = hopper_calls(made.plan(), made.step(), architecture, share)
    found = data.run(device, [changed(call, change) for call in calls], scalars, HOW)
    check(data, found, scalars)


CHECKS = (
    check_turned,
    check_padded,
    check_converted,
    check_combined,
    check_unread,
    check_reduced,
    check_bits,
    check_product,
    check_product_without_addend,
    check_rounded,
    check_nearest,
    check_deep,
    check_infinite,
    check_in_parts,
    check_turned16,
    check_complex,
    check_hopper,
    check_hopper_groups,
    check_hopper_parts,
)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_checks_pass_on_the_kernels_as_they_are(
    device: Device, check: Callable[[Device, Change], None]
) -> None:
    check(device, lambda text: text)


# --- bugs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """``old`` in the source becomes ``new``; ``check`` notices."""

    name: str
    old: str
    new: str
    check: Check

    def plant(self, text: str) -> str:
        """The source with the bug; where the kernel has no such line, as it is."""
        return text.replace(self.old, self.new, 1)


BUGS = (
    Bug("no barrier in a tile", "if constexpr (SHARED) __syncthreads();", "", check_turned),
    Bug("chunks as long as a tile", "* a.x.chunk;", "* TX;", check_turned),
    Bug("no end of a mode", "&& index < (Offset)side.extent", "", check_turned),
    Bug("one column of a vector", "tile[(x + j) *", "tile[x *", check_turned),
    Bug("strides of another tensor", "loop.stride[t];", "loop.stride[0];", check_turned),
    Bug("a divisor one too small", "n, d.magic)", "n, d.magic - 2)", check_turned),
    Bug("padding one too late", "index >= loop.left", "index > loop.left", check_padded),
    Bug("rounding towards zero", "cvt.rn.f16.f32", "cvt.rz.f16.f32", check_converted),
    Bug("NaN lost", "x > y || x != x ? x : y", "x > y ? x : y", check_combined),
    Bug(
        "factors exchanged",
        "raw.at[j], a.factor[TENSOR - 1])",
        "raw.at[j], a.factor[0])",
        check_combined,
    ),
    Bug("a factor of zero reads", "!is_zero(a.factor[TENSOR - 1])", "true", check_unread),
    Bug(
        "no barrier between warps",
        "__syncthreads();\n    if (threadIdx.x & partners)",
        "if (threadIdx.x & partners)",
        check_reduced,
    ),
    Bug("half of a warp", "bit < 32; bit *= 2", "bit < 16; bit *= 2", check_reduced),
    Bug("the end of a part", "there[u] = at[u] < end;", "there[u] = true;", check_reduced),
    Bug(
        "another order of sums",
        "x[i] = combine(x[i], x[i + half])",
        "x[i] = combine(x[i], x[N - 1 - i])",
        check_bits,
    ),
    Bug(
        "no barrier between steps",
        "if (more) put(slot ^ 1);\n      __syncthreads();",
        "if (more) put(slot ^ 1);",
        check_product,
    ),
    Bug("offsets of the step before", "fetch(slot ^ 1);", "fetch(slot);", check_product),
    Bug("a step read before it has come", '"cp.async.wait_all;"', '""', check_product),
    Bug("numbers beyond the last k", "there ? BYTES : 0", "BYTES", check_product),
    Bug("half of a step too few", "more || left > Tile::K / 2", "more", check_product),
    Bug("rows beyond the end", "whole || is_row(row)", "true", check_product),
    Bug(
        "beta not applied",
        "convert<Compute>(c)), beta)",
        "convert<Compute>(c)), alpha)",
        check_product,
    ),
    Bug(
        "a beta of zero reads",
        "adds(C::present && !is_zero(beta))",
        "adds(C::present)",
        check_product_without_addend,
    ),
    Bug("copies not waited for", "wait_copies<AHEAD - 1>();", "", check_rounded),
    Bug(
        "a stage refilled while it is read",
        "wait_copies<AHEAD - 1>();\n      __syncthreads();",
        "wait_copies<AHEAD - 1>();",
        check_rounded,
    ),
    Bug("no zeros beyond the last k", "inside ? BYTES : 0", "BYTES", check_rounded),
    Bug("cut instead of rounded", "cvt.rn.tf32.f32", "cvt.rz.tf32.f32", check_nearest),
    Bug("rows in another order", "row / APART % RUN) * 8", "0) * 8", check_deep),
    Bug("other columns", "lane % 4 * 2) + Columns", "lane % 4) + Columns", check_rounded),
    Bug(
        "offsets of k that are still in use",
        "tabulate_k(table == AHEAD ? CHUNK : 0,",
        "tabulate_k(table == AHEAD ? 0 : CHUNK,",
        check_deep,
    ),
    Bug(
        "sums that are not finite kept",
        "if (!__syncthreads_or(zero != 0)) return;",
        "return;",
        check_infinite,
    ),
    Bug("columns of another warp", "warp / Tile::WARPS_M % Tile::WARPS_N", "0", check_rounded),
    Bug(
        "the next tile's tables over this one's",
        "part(a, item - a.whole)[at * MAIN::OWNERS] = x; });\n      __syncthreads();",
        "part(a, item - a.whole)[at * MAIN::OWNERS] = x; });",
        check_rounded,
    ),
    Bug("a part of k twice", "* a.part_k;\n        tile", "* 0;\n        tile", check_in_parts),
    Bug("one part left out", "p < a.parts_of.extent", "p + 1 < a.parts_of.extent", check_in_parts),
    Bug(
        "small parts of numbers left out",
        "int order = Unit::PARTS - 1;",
        "int order = 0;",
        check_in_parts,
    ),
    Bug(
        "k of another fragment",
        "const int k = upper * 4 * NEAR;",
        "const int k = 0;",
        check_turned16,
    ),
    Bug(
        "a k twice in a fragment",
        "k, depth(2 * w + 1));",
        "k, depth(2 * w));",
        check_turned16,
    ),
    Bug(
        "the sign of i squared",
        "upper = Unit::negative(upper), lower = Unit::negative(lower)",
        "lower = Unit::negative(lower)",
        check_complex,
    ),
    Bug("operators beyond the last k", "depth(e) < left", "depth(e) < 64", check_complex),
    Bug(
        "a stage refilled while it is read",
        "s.empty[ring.slot].wait(ring.parity ^ 1);",
        "",
        check_hopper,
    ),
    Bug("a stage read before it is full", "s.full[ring.slot].wait(ring.parity);", "", check_hopper),
    Bug("the parity of the use before", "slot = 0, parity ^= 1", "slot = 0", check_hopper),
    Bug("bytes of A alone", ".expect(STAGE)", ".expect(PA::TOTAL)", check_hopper),
    Bug("barriers not shown to TMA", "fence.mbarrier_init.release.cluster;", "", check_hopper),
    Bug("no fence before products", "      fence_products();", "", check_hopper),
    Bug("stages left before products end", "wait_for_products<1>();", "", check_hopper),
    Bug("sums read before products end", "    wait_for_products<0>();", "", check_hopper),
    Bug(
        "tables changed while they are read",
        "meet();  // the tables",
        "// the tables",
        check_hopper,
    ),
    Bug(
        "tables read before they are made",
        "        meet();\n        write(",
        "        write(",
        check_hopper,
    ),
    Bug("rows of D beyond the end", "there = s.is_row[row];", "there = true;", check_hopper),
    Bug("columns of D beyond the end", "if (s.is_column[column + at]) *", "*", check_hopper),
    Bug("lanes that keep their pairs", "? got : low", "? low : got", check_hopper),
    Bug(
        "the last group as high as others", "- first < a.group", "- first < 0", check_hopper_groups
    ),
    Bug("groups that begin anew", "n / a.group_tiles * a.group", "0", check_hopper_groups),
    Bug("batches that begin anew", "+ l * a.tiles_mn;", ";", check_hopper_groups),
    Bug("a part of all steps", "begin + a.part_steps < steps", "steps == 0", check_hopper_parts),
    Bug(
        "parts with the same steps", "begin = part * a.part_steps", "begin = 0", check_hopper_parts
    ),
    Bug(
        "parts kept in one place",
        "a.parts + (long long)item * TILE_SUMS;",
        "a.parts;",
        check_hopper_parts,
    ),
    Bug(
        "a part left out",
        "unsigned item = number; item <",
        "unsigned item = number + a.tiles.extent; item <",
        check_hopper_parts,
    ),
    Bug(
        "a stage left by the step before",
        "if (step != work.begin) release",
        "if (step) release",
        check_hopper_parts,
    ),
    Bug("panels of n side by side", ": PANEL / 16, stride", ": BYTES / 16, stride", check_hopper),
    Bug("another swizzle", "BYTES == 64 ? 2 : 3;", "BYTES == 64 ? 3 : 2;", check_hopper),
)


def planted_by_default() -> list[Any]:
    """Every bug as a parameter; those of a check after the first are exhaustive."""
    checks: set[Check] = set()
    found = []
    for bug in BUGS:
        marks = [pytest.mark.exhaustive] if bug.check in checks else []
        found.append(pytest.param(bug, id=bug.name, marks=marks))
        checks.add(bug.check)
    return found


@pytest.mark.parametrize("bug", planted_by_default())
def test_a_planted_bug_is_noticed(device: Device, bug: Bug) -> None:
    planted = []

    def change(text: str) -> str:
        planted.append(bug.plant(text) != text)
        return bug.plant(text)

    with pytest.raises((KernelFault, AssertionError)):
        bug.check(device, change)
    assert any(planted)


def test_a_vector_that_is_not_aligned_is_noticed(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elementwise, "_is_legal", lambda *_: True)
    with pytest.raises(KernelFault, match="misaligned"):
        check_turned(device, lambda text: text)
