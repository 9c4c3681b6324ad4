"""cuTENSOR as a peer: operations planned for a layout at the first call, then run as they are.

Through CuPy's binding of cuTENSOR's C interface. cupyx.cutensor is not used: it tells cuTENSOR
that arrays are aligned to one element only, and plans may depend on that.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import opt_einsum

from bench.device import Run
from bench.reference import Path, split
from contract.descriptors.compute_types import ComputeType, accumulator

ALIGNMENT = 256
LIBRARY = "libcutensor.so.2"
SPELLED = {"COMPUTE_DESC_3XTF32": "COMPUTE_DESC_3xTF32"}  # as CuPy has them
Execute = Callable[..., None]  # inputs, then the output
Tensor = tuple[Any, str]  # an array and its modes


@dataclass(frozen=True, slots=True)
class Scalars:
    """The addresses of a 1 and of a 0 of one type, and the memory that they lie in."""

    one: int
    zero: int
    memory: Any


class Cutensor:
    """A cuTENSOR handle, and its operations on CuPy arrays, planned for their layouts."""

    def __init__(self) -> None:
        self.cupy = import_module("cupy")
        # Imported in this form, CuPy also looks for the library where pip puts it.
        from cupy_backends.cuda.libs import cutensor as api

        self._api = api
        self._handle = api.create()
        self._preference = api.createPlanPreference(
            self._handle, api.ALGO_DEFAULT, api.JIT_MODE_NONE
        )
        self._types = {
            "float16": api.R_16F,
            "bfloat16": api.R_16BF,
            "float32": api.R_32F,
            "float64": api.R_64F,
            "complex64": api.C_32F,
            "complex128": api.C_64F,
        }
        single, double = api.COMPUTE_DESC_32F, api.COMPUTE_DESC_64F
        doubles = ("float64", "complex128")
        self._compute = {kind: double if kind in doubles else single for kind in self._types}
        self._allowed: int | None = None
        self._scalars = {kind: _scalars(np.dtype(accumulator(kind))) for kind in self._types}
        self._descriptors: dict[tuple[Any, ...], int] = {}
        self._modes: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """10000 * major + 100 * minor + patch."""
        return str(self._api.get_version())

    def allow(self, compute: ComputeType | None) -> None:
        """Let the contractions to come be as inaccurate as ``compute``; None: the default.

        ImportError where cuTENSOR has no such compute type.
        """
        self._allowed = None if compute is None else _descriptor(self._api, compute)

    def product(self, text: str, operands: Sequence[Any], path: Path | None) -> Run:
        """The expression step by step, each result column-major."""
        return Evaluation(self, text, operands, path)

    def copy(self, text: str, source: Any, target: Any) -> Run:
        """A permutation into memory that is there."""
        (modes,), output = split(text)
        planned: list[Execute] = []

        def run() -> Any:
            if not planned:
                planned.append(self.elementwise([(source, modes)], (target, output)))
            planned[0](source, target)
            return target

        return run

    # --- operations -------------------------------------------------------------------------

    def elementwise(self, inputs: Sequence[Tensor], d: Tensor) -> Execute:
        """D = the product of one to three inputs; of several the last is laid out as D is."""
        api, one = self._api, self._scalars[d[0].dtype.name].one
        creates = (
            api.createPermutation,
            api.createElementwiseBinary,
            api.createElementwiseTrinary,
        )
        executes = api.permute, api.elementwiseBinaryExecute, api.elementwiseTrinaryExecute
        at = len(inputs) - 1
        plan, _ = self._planned(creates[at], inputs, d, [api.OP_MUL] * at)
        execute, handle = executes[at], self._handle

        def run(*arrays: Any) -> None:
            *given, result = (x.data.ptr for x in arrays)
            factors = [value for x in given for value in (one, x)]
            execute(handle, plan, *factors, result)

        return run

    def reduction(self, a: Tensor, d: Tensor) -> Execute:
        """D = the sum of A over the modes that D has not."""
        api, handle, scalars = self._api, self._handle, self._scalars[d[0].dtype.name]
        plan, size = self._planned(api.createReduction, [a, d], d, [api.OP_ADD])
        workspace = self.cupy.cuda.alloc(size)

        def run(x: Any, result: Any) -> None:
            source, out = x.data.ptr, result.data.ptr
            api.reduce(
                handle, plan, scalars.one, source, scalars.zero, out, out, workspace.ptr, size
            )

        return run

    def contraction(self, a: Tensor, b: Tensor, d: Tensor) -> Execute:
        """D = A * B, summed over the modes that D has not."""
        api, handle, scalars = self._api, self._handle, self._scalars[d[0].dtype.name]
        plan, size = self._planned(api.createContraction, [a, b, d], d, [], self._allowed)
        workspace = self.cupy.cuda.alloc(size)

        def run(x: Any, y: Any, result: Any) -> None:
            out = result.data.ptr
            api.contract(
                *(handle, plan, scalars.one, x.data.ptr, y.data.ptr),
                *(scalars.zero, out, out, workspace.ptr, size),
            )

        return run

    # --- plans --------------------------------------------------------------------------------

    def _planned(
        self,
        create: Callable[..., int],
        read: Sequence[Tensor],
        d: Tensor,
        operators: list[int],
        compute: int | None = None,
    ) -> tuple[int, int]:
        """A plan of D from what is read, and the bytes of workspace that it needs."""
        api, handle = self._api, self._handle
        compute = self._compute[d[0].dtype.name] if compute is None else compute
        inputs = [value for each in read for value in (*self._tensor(each), api.OP_IDENTITY)]
        made = create(handle, *inputs, *self._tensor(d), *operators, compute)
        limit = api.estimateWorkspaceSize(handle, made, self._preference, api.WORKSPACE_RECOMMENDED)
        plan = api.createPlan(handle, made, self._preference, limit)
        size = np.zeros(1, np.uint64)
        api.planGetAttribute(
            handle, plan, api.PLAN_REQUIRED_WORKSPACE, size.ctypes.data, size.nbytes
        )
        return plan, int(size[0])

    def _tensor(self, tensor: Tensor) -> tuple[int, int]:
        """A descriptor and the address of the modes; the same for C and D where they are alike."""
        x, labels = tensor
        if labels not in self._modes:
            self._modes[labels] = np.array([ord(label) for label in labels], np.int32)
        alignment = min(x.data.ptr & -x.data.ptr, ALIGNMENT)
        key = x.shape, x.strides, x.dtype.name, alignment
        if key not in self._descriptors:
            self._descriptors[key] = self._described(x, alignment)
        return self._descriptors[key], self._modes[labels].ctypes.data

    def _described(self, x: Any, alignment: int) -> int:
        extents = np.array(x.shape, np.int64)
        strides = np.array(x.strides, np.int64) // x.itemsize
        made: int = self._api.createTensorDescriptor(
            *(self._handle, x.ndim, extents.ctypes.data, strides.ctypes.data),
            *(self._types[x.dtype.name], alignment),
        )
        return made


def _descriptor(api: Any, compute: ComputeType) -> int:
    """Of a compute type: CuPy's constant, else the library's own variable."""
    name = f"COMPUTE_DESC_{compute.value}"
    found: int | None = getattr(api, SPELLED.get(name, name), None)
    if found is None:
        try:
            found = ctypes.c_void_p.in_dll(ctypes.CDLL(LIBRARY), f"CUTENSOR_{name}").value
        except (OSError, ValueError) as error:
            raise ImportError(f"cuTENSOR has no {name}: {error}") from error
    assert found is not None
    return found


def _scalars(dtype: np.dtype[Any]) -> Scalars:
    memory = np.array([1, 0], dtype)
    return Scalars(memory.ctypes.data, memory.ctypes.data + dtype.itemsize, memory)


# --- expressions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on numbered arrays; its result has the next number."""

    execute: Execute
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


class Evaluation:
    """An expression on given arrays: planned at the first call, for their layouts."""

    def __init__(
        self, cutensor: Cutensor, text: str, operands: Sequence[Any], path: Path | None
    ) -> None:
        self._cutensor = cutensor
        self._text = text
        self._operands = tuple(operands)
        self._path = path
        self._steps: tuple[Step, ...] = ()

    def __call__(self) -> Any:
        if not self._steps:
            self._steps = tuple(self._plan())
        arrays = list(self._operands)
        for step in self._steps:
            result = self._new(step.shape)
            step.execute(*(arrays[at] for at in step.inputs), result)
            arrays.append(result)
        return arrays[-1]

    def _new(self, shape: tuple[int, ...]) -> Any:
        return self._cutensor.cupy.ndarray(shape, self._operands[0].dtype, order="F")

    def _plan(self) -> list[Step]:
        terms, output = split(self._text)
        tensors: list[Tensor] = list(zip(self._operands, terms, strict=True))
        steps: list[Step] = []
        if multiplied(tensors, output):
            self._add(steps, tensors, tuple(range(len(tensors))), output)
            return steps
        waiting = list(range(len(tensors)))
        for positions, result in self._pairs():
            taken = [waiting.pop(at) for at in positions]
            kept = [self._summed(steps, tensors, at, taken, result) for at in taken]
            waiting.append(self._add(steps, tensors, kept, result))
        return steps

    def _pairs(self) -> list[tuple[tuple[int, ...], str]]:
        """The positions that each step takes, and the modes of its result."""
        shapes = [x.shape for x in self._operands]
        how = self._path or "auto"
        info = opt_einsum.contract_path(self._text, *shapes, shapes=True, optimize=how)[1]
        return [(step[0], split(step[2])[1]) for step in info.contraction_list]

    def _summed(
        self, steps: list[Step], tensors: list[Tensor], at: int, taken: Sequence[int], result: str
    ) -> int:
        """The array of a pair without the modes that neither the other nor the result has."""
        labels = tensors[at][1]
        others = {label for each in taken if each != at for label in tensors[each][1]}
        kept = "".join(label for label in labels if label in others or label in result)
        if len(taken) == 1 or kept == labels:
            return at
        return self._add(steps, tensors, (at,), kept)

    def _add(
        self, steps: list[Step], tensors: list[Tensor], inputs: Sequence[int], output: str
    ) -> int:
        """The number of the result of a step that is added."""
        given = [tensors[at] for at in inputs]
        extents = {
            x: n for array, labels in given for x, n in zip(labels, array.shape, strict=True)
        }
        d = self._new(tuple(extents[x] for x in output)), output
        if multiplied(given, output):
            inputs = sorted(inputs, key=lambda at: tensors[at][1] == output)
            execute = self._cutensor.elementwise([tensors[at] for at in inputs], d)
        elif len(given) == 1:
            execute = self._cutensor.reduction(given[0], d)
        else:
            execute = self._cutensor.contraction(given[0], given[1], d)
        steps.append(Step(execute, tuple(inputs), d[0].shape))
        tensors.append(d)
        return len(tensors) - 1


def multiplied(inputs: Sequence[Tensor], output: str) -> bool:
    """Whether one elementwise operation does it: no sum, and D laid out as an input is."""
    summed = {label for _, labels in inputs for label in labels} - set(output)
    laid_out = any(labels == output and x.flags.f_contiguous for x, labels in inputs)
    return not summed and len(inputs) <= 3 and (laid_out or len(inputs) == 1)
