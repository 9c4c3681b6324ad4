"""Products for the tests of kernels: random layouts, their data, and what must come out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from contract.descriptors.compute_types import ComputeType, is_complex, item_size, unit_roundoff
from contract.descriptors.layout import offset_bounds
from contract.descriptors.operations import TensorDescriptor
from contract.descriptors.operators import Operator
from contract.machines.gpu import Architecture
from contract.machines.gpu_tiles import Workload
from contract.plan.steps import Gett, Kind, Loop, Plan, Slot, SlotKind
from contract.planner.device.launch import KernelCall
from contract.planner.device.problem import held_by, problem_of

from ..reference import INPUT_BITS
from .device import Device, Options
from .launching import run_call

NAMES = "abdc"  # the order of slots: A, B, D, C
KINDS = (SlotKind.INPUT, SlotKind.INPUT, SlotKind.OUTPUT, SlotKind.ADDEND)
HAVE = {"a": "lmk", "b": "lkn", "d": "lmn", "c": "lmn"}


@dataclass(frozen=True)
class Mode:
    """A loop of a product: its kind, its extent, and by tensor how it lies there."""

    kind: str
    extent: int


@dataclass(frozen=True)
class Layout:
    """A tensor: its modes from the fastest on, with gaps, reversed or standing still."""

    order: tuple[int, ...]
    gap: int = 0  # elements between runs of the fastest mode, and between all that follow
    step: int = 1  # stride of the fastest mode
    negative: tuple[int, ...] = ()
    still: tuple[int, ...] = ()  # stride 0
    shift: int = 0  # elements from an aligned address to the lowest element

    def strides(self, modes: Sequence[Mode]) -> dict[int, int]:
        """The stride of each mode, in elements."""
        found, step = {}, self.step
        for at in self.order:
            found[at] = 0 if at in self.still else -step if at in self.negative else step
            if at not in self.still:
                step = step * modes[at].extent + self.gap
        return found


@dataclass(frozen=True)
class Case:
    """A step Gett: types of A, B, D, C and of the computation, modes, layouts, operators."""

    modes: tuple[Mode, ...]
    layouts: dict[str, Layout]
    types: dict[str, str]
    dtype: str
    operators: dict[str, Operator] = field(default_factory=dict)
    scaled: bool = True
    aligned: bool = True  # False: the addresses are said to be aligned to an element only
    compute: ComputeType | None = None

    @property
    def tensors(self) -> str:
        """The names of the tensors there are."""
        return "".join(name for name in NAMES if name in self.layouts)

    def step(self) -> Gett:
        """The step over slots A, B, D, C."""
        by_name = {name: self.layouts[name].strides(self.modes) for name in self.tensors}
        loops = tuple(
            Loop(
                Kind(mode.kind),
                mode.extent,
                *(by_name[name].get(at, 0) if name in by_name else 0 for name in NAMES),
                (at,),
            )
            for at, mode in enumerate(self.modes)
        )
        operator = {name: self.operators.get(name, Operator.IDENTITY) for name in "abc"}
        return Gett(
            *(0, 1, 2),
            loops,
            self.dtype,
            operator["a"],
            operator["b"],
            self.scaled,
            3 if "c" in self.layouts else None,
            operator["c"],
            self.compute,
        )

    def plan(self) -> Plan:
        """What of a plan the lowering reads."""
        slots = [
            Slot(kind, TensorDescriptor((1,), None, self.types[name], self.alignment(name)))
            for kind, name in zip(KINDS, self.tensors, strict=False)
        ]
        plan: Any = SimpleNamespace(slots=tuple(slots))
        return plan

    def origin(self, name: str) -> int:
        """Elements from an address of 256 bytes to the tensor's origin."""
        layout = self.layouts[name]
        strides = layout.strides(self.modes)
        sizes = [self.modes[at].extent for at in strides]
        return layout.shift - offset_bounds(sizes, list(strides.values()))[0]

    def alignment(self, name: str) -> int:
        """The power of two, up to 256, that divides the origin's address."""
        size = item_size(self.types[name])
        at = self.origin(name) * size if self.aligned else size
        return min(at & -at, 256) if at else 256


def modes(**extents: Sequence[int]) -> tuple[Mode, ...]:
    """modes(m=(4, 5), k=(6,)): the modes by kind."""
    return tuple(Mode(kind, n) for kind, sizes in extents.items() for n in sizes)


def case(
    loops: Sequence[Mode],
    dtype: str = "float32",
    tensors: str = "abdc",
    first: Sequence[int] = (),
    types: dict[str, str] | None = None,
    operators: dict[str, Operator] | None = None,
    compute: ComputeType | None = None,
    **layout: Any,
) -> Case:
    """Packed tensors, the modes ``first`` fastest, then the others; ``layout`` goes to all."""
    order = (*first, *(at for at in range(len(loops)) if at not in first))
    layouts = {
        name: Layout(tuple(at for at in order if loops[at].kind in HAVE[name]), **layout)
        for name in tensors
    }
    known = {name: (types or {}).get(name, dtype) for name in tensors}
    return Case(tuple(loops), layouts, known, dtype, operators or {}, compute=compute)


def numpy_type(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


class Data:
    """The tensors of a case in flat memory, with NaN (or noise) where no tensor is."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        self.flat: dict[str, Any] = {}
        self.held: dict[str, Any] = {}  # writable, of extent 1 where a mode stands still
        self.view: dict[str, Any] = {}
        for name in case.tensors:
            self._make(name, rng)

    def _make(self, name: str, rng: np.random.Generator) -> None:
        case, kind = self.case, numpy_type(self.case.types[name])
        strides = case.layouts[name].strides(case.modes)
        sizes = [case.modes[at].extent for at in strides]
        high = offset_bounds(sizes, list(strides.values()))[1]
        flat = np.empty(case.origin(name) + high + 1 + 3, kind)
        flat[:] = np.nan if kind.kind in "fcV" else 99
        shape = [n if s else 1 for n, s in zip(sizes, strides.values(), strict=True)]
        bytes_ = [stride * kind.itemsize for stride in strides.values()]
        view = np.lib.stride_tricks.as_strided(
            flat[case.origin(name) :], shape, bytes_, writeable=True
        )
        view[...] = draw(rng, shape, case.types[name])
        self.flat[name], self.held[name] = flat, view
        self.view[name] = np.broadcast_to(view, sizes) if name in "ab" else view

    def run(
        self,
        device: Device,
        calls: Sequence[KernelCall],
        scalars: Sequence[complex],
        options: Options | None = None,
        seen: Callable[[Any], None] = lambda scratch: None,
    ) -> Any:
        """D's memory after the launches; ``seen`` gets the bytes of scratch; all are freed."""
        case = self.case
        slots = [device.upload(self.flat[name]) for name in case.tensors]
        offsets = [case.origin(name) * item_size(case.types[name]) for name in case.tensors]
        scratch = device.allocate(max((call.scratch for call in calls), default=0))
        try:
            for call in calls:
                run_call(device, call, slots, scalars, scratch, options, offsets)
            seen(scratch.bytes)
            return slots[2].download(numpy_type(case.types["d"]))
        finally:
            for memory in (*slots, scratch):
                memory.free()


def workload(made: Case, architecture: Architecture) -> Workload:
    """What the product of a case asks of a machine."""
    return problem_of(made.step(), held_by(made.plan(), made.step())).workload(architecture)


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Any:
    """Numbers of the size of 1; all integers of a type."""
    kind = numpy_type(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.2
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    x = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
    if is_complex(dtype):
        x = x + 1j * rng.uniform(-1, 1, shape)
    return x.astype(kind)


APPLY = {
    Operator.IDENTITY: lambda x: x,
    Operator.CONJ: np.conj,
    Operator.RELU: lambda x: np.maximum(x, 0).astype(x.dtype),
    Operator.RCP: lambda x: (1 / x).astype(x.dtype),
    Operator.ABS: np.abs,
}


def converted(x: Any, dtype: str) -> Any:
    return np.asarray(x).astype(numpy_type(dtype))


def exact(dtype: str) -> Any:
    """A type that holds sums of products in ``dtype`` far better than it does."""
    if dtype == "bool":
        return np.dtype("int64")
    if numpy_type(dtype).kind in "iu":
        return numpy_type(dtype)
    return np.dtype("clongdouble" if is_complex(dtype) else "longdouble")


def expected(data: Data, scalars: Sequence[complex]) -> tuple[Any, Any]:
    """What D's elements must be, and how far each may be from it."""
    case = data.case
    operator = {name: case.operators.get(name, Operator.IDENTITY) for name in "abc"}
    read = {
        name: APPLY[operator[name]](converted(data.view[name], case.dtype)).astype(
            exact(case.dtype)
        )
        for name in case.tensors
        if name != "d"
    }
    alpha, beta = (
        exact(case.dtype).type(x if is_complex(case.dtype) else x.real) for x in scalars[:2]
    )
    of = {name: list(case.layouts[name].order) for name in case.tensors}
    with np.errstate(all="ignore"):
        sums = np.einsum(read["a"], of["a"], read["b"], of["b"], of["d"])
        sizes = np.einsum(abs(read["a"]), of["a"], abs(read["b"]), of["b"], of["d"])
        if case.dtype == "bool":
            sums = (sums > 0).astype(sums.dtype)
        value, plus = (alpha * sums if case.scaled else sums), np.zeros_like(sums)
        if "c" in read and beta != 0:
            plus = beta * np.einsum(read["c"], of["c"], of["d"])
        return value + plus, _bound(case, value + plus, sizes, plus, alpha)


def _bound(case: Case, value: Any, sizes: Any, plus: Any, alpha: Any) -> Any:
    if numpy_type(case.dtype).kind in "biu":
        return np.zeros(value.shape)
    terms = int(np.prod([mode.extent for mode in case.modes if mode.kind == "k"]))
    u, out = unit_roundoff(case.dtype), unit_roundoff(case.types["d"])
    factor = 4 if is_complex(case.dtype) else 1
    size = abs(alpha) if case.scaled else 1
    relative = 2 * _input_roundoff(case) + (terms + 2) * u
    within = size * relative * sizes + 2 * u * abs(plus) + 2 * out * abs(value)
    return factor * within + 1e-38


def _input_roundoff(case: Case) -> float:
    """To what the compute type may round an input; 0 where that is not below the input's own."""
    if case.compute is None:
        return 0.0
    rounded = 2.0 ** -INPUT_BITS.get(case.compute.value, 53)
    return rounded if rounded > max(unit_roundoff(case.types[x]) for x in "ab") else 0.0


def check(data: Data, memory: Any, scalars: Sequence[complex]) -> None:
    """D has the expected values, and nothing beside D was written."""
    case = data.case
    value, bound = expected(data, scalars)
    kind = numpy_type(case.types["d"])
    layout = case.layouts["d"].strides(case.modes)
    bytes_ = [stride * kind.itemsize for stride in layout.values()]
    shape = [case.modes[at].extent for at in layout]
    origin = case.origin("d")
    got = np.lib.stride_tricks.as_strided(memory[origin:], shape, bytes_)
    if kind.kind in "biu":
        np.testing.assert_array_equal(got, value.astype(case.dtype).astype(kind))
    else:
        far = abs(got.astype(value.dtype) - value)
        assert (far <= bound).all(), (
            f"{np.nanmax(far / bound)} of the bound; NaN: {np.isnan(far).any()}"
        )
    touched = np.zeros(memory.size, bool)
    np.lib.stride_tricks.as_strided(touched[origin:], shape, list(layout.values()), writeable=True)[
        ...
    ] = True
    before = data.flat["d"]
    assert memory[~touched].tobytes() == before[~touched].tobytes(), "written beside D"
