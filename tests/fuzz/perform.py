"""A case is made, called and judged."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import contract as ct
from contract.descriptors.operations import PlanPreference
from contract.descriptors.operators import BinaryOperator, Operator
from contract.session import handle as session_handle
from tests.fuzz.arrays import Made, made
from tests.fuzz.cases import Case, Tensor, Verb
from tests.fuzz.expected import Estimate, expected
from tests.fuzz.guard import GuardedMemory, GuardedPool, NumpyMemory

__all__ = ["Bench", "Refused", "Wrong"]

SCALARS = 64  # bytes
Call = Callable[[], np.ndarray]


class Wrong(Exception):
    """What a case gave is not what it should give."""


class Refused(Exception):
    """The call was refused for a documented reason."""


@dataclass(frozen=True)
class _Arrays:
    """What a call gets."""

    operands: list[Made]
    c: Made | None
    out: Made | None

    @property
    def inputs(self) -> list[np.ndarray]:
        return [each.array for each in self.operands]

    @property
    def addend(self) -> np.ndarray | None:
        return None if self.c is None else self.c.array

    def target(self, case: Case) -> np.ndarray | None:
        match case.out:
            case None:
                return None
            case "c":
                return self.addend
            case int():
                return self.inputs[case.out]
        return self.out.array if self.out is not None else None

    def read(self, case: Case) -> Iterator[tuple[str, Made]]:
        """What the call may not change."""
        for at, each in enumerate(self.operands):
            if not isinstance(case.out, int) or each is not self.operands[case.out]:
                yield f"operand {at}", each
        if self.c is not None and case.out != "c":
            yield "c", self.c


class Bench:
    """Handles, and memory between guard pages, for case after case."""

    def __init__(self) -> None:
        self.memory = GuardedMemory()
        self._numpy = NumpyMemory(self.memory)
        self._handles: dict[tuple[str, int, bool], ct.Handle] = {}

    def handle(self, case: Case) -> ct.Handle:
        """A handle whose buffers lie between guard pages."""
        key = case.kernels, case.threads, case.checked
        if key not in self._handles:
            with mock.patch.dict(os.environ, CONTRACT_CHECK=str(int(case.checked))):
                handle = ct.Handle(kernels=case.kernels, threads=case.threads)
            self._handles[key] = handle
            handle.executor.pool = GuardedPool(self.memory)
        return self._handles[key]

    def run(self, case: Case) -> None:
        """Wrong says what was found; Refused is fine; any other exception is a finding as well."""
        self.memory.at_end = case.at_end
        arrays = self._arrays(case)
        wanted = expected(case, [np.array(x) for x in arrays.inputs], _copy(arrays.addend))
        with self._default_handle(case) as handle:
            call = _CALLS[case.verb](case, arrays, handle, self.memory)
            results = self._results(case, arrays, call)
        for found in results:
            _check(case, found, wanted)
        if dict(case.preference).get("autotune") is None:  # whose last bits may differ
            _check_same(results)
        _check_memory(case, arrays)
        results.clear()
        self._check_guards()

    def _arrays(self, case: Case) -> _Arrays:
        distinct = {tensor: made(tensor, self.memory) for tensor in set(case.operands)}
        operands = [distinct[tensor] for tensor in case.operands]
        c = None if case.c is None else made(case.c, self.memory)
        out = made(case.out, self.memory) if isinstance(case.out, Tensor) else None
        return _Arrays(operands, c, out)

    @contextmanager
    def _default_handle(self, case: Case) -> Iterator[ct.Handle]:
        """The case's handle, also for verbs that take none."""
        handle, before = self.handle(case), session_handle.default_handle
        session_handle.default_handle = lambda *_: handle  # type: ignore[assignment]
        try:
            yield handle
        finally:
            session_handle.default_handle = before

    def _results(self, case: Case, arrays: _Arrays, call: Call) -> list[np.ndarray]:
        """A copy of what each call gives."""
        found = []
        for _ in range(1 if case.out in ("c", 0, 1, 2, 3, 4) else case.calls):
            before = self.memory.peak = self.memory.live
            try:
                with self._numpy.guarded():
                    result = call()
            except ct.ContractError as error:
                _check_refused(case, arrays, error)
                raise Refused(str(error)) from error
            if found:  # the first call prepares the plan, which takes memory of its own
                _check_peak(case, self.memory.peak - before)
            found.append(np.array(result, _object(case), order="K"))
            del result
        return found

    def _check_guards(self) -> None:
        damaged, self.memory.damaged = self.memory.damaged, 0
        if damaged:
            raise Wrong(f"{damaged} blocks of memory were written beside")


def _object(case: Case) -> Any:
    """The type of Python's numbers, which einsum gives for objects of rank 0."""
    return object if case.common.hasobject else None


def _copy(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else np.array(array)


# --- calls ----------------------------------------------------------------------------------------


def _preference(case: Case) -> PlanPreference | None:
    asked = dict(case.preference)
    for name, kind in (
        ("algo", ct.Algo),
        ("autotune", ct.AutotuneMode),
        ("cache_mode", ct.CacheMode),
    ):
        if name in asked:
            asked[name] = kind[asked[name]]
    if case.memory.workspace is not None:
        asked["workspace_limit"] = case.memory.workspace
    return PlanPreference(**asked) if asked else None


def _arguments(case: Case, arrays: _Arrays) -> tuple[Any, ...]:
    if not case.interleaved:
        return (case.text, *arrays.inputs)
    pairs = [y for term, x in zip(case.terms, arrays.inputs, strict=True) for y in (x, list(term))]
    return (*pairs, list(case.output))


def _scalar_options(case: Case, *names: str) -> dict[str, Any]:
    every = dict(zip(("alpha", "beta", "gamma"), case.scalars, strict=True))
    return {name: every[name] for name in names if every[name] is not None}


def _common_options(case: Case, handle: ct.Handle) -> dict[str, Any]:
    options = {"order": case.order, "memory_limit": case.memory.limit, "handle": handle}
    return options if case.compute_type is None else {**options, "compute_type": case.compute_type}


def _planning_options(case: Case, handle: ct.Handle) -> dict[str, Any]:
    return {
        **_common_options(case, handle),
        "optimize": case.optimize,
        "operators": case.operators,
        "preference": _preference(case),
        "slices": None if case.slices is None else dict(case.slices),
    }


def _contract(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _planning_options(case, handle) | _scalar_options(case, "alpha", "beta")
    out, c = arrays.target(case), arrays.addend
    return lambda: ct.contract(*_arguments(case, arrays), out=out, c=c, **options)


def _expression(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _planning_options(case, handle)
    out, c, planned = arrays.target(case), arrays.addend, list[ct.ContractExpression]()
    scalars = _scalar_options(case, "alpha", "beta")

    def call() -> np.ndarray:
        if not planned:
            given = [
                x if at in case.constants else _described(x) for at, x in enumerate(arrays.inputs)
            ]
            planned.append(ct.contract_expression(case.text, *given, **options))
        left = [x for at, x in enumerate(arrays.inputs) if at not in case.constants]
        return planned[0](*left, out=out, c=c, **scalars)

    return call


def _described(x: np.ndarray) -> Any:
    size = x.itemsize
    if any(step % size for step in x.strides):
        return ct.TensorDescriptor(x.shape, None, x.dtype.name)
    return ct.TensorDescriptor(x.shape, tuple(step // size for step in x.strides), x.dtype.name)


def _einsum(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    out = arrays.target(case)
    optimize = False if case.optimize == "auto" else case.optimize
    return lambda: ct.einsum(
        case.text, *arrays.inputs, out=out, order=case.order, optimize=optimize
    )


def _permute(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _common_options(case, handle) | _scalar_options(case, "alpha")
    return lambda: ct.permute(
        *_arguments(case, arrays),
        out=arrays.target(case),
        operator=None if case.operators is None else case.operators[0],
        padding=case.padding,
        padding_value=case.padding_value,
        dtype=case.dtype,
        **options,
    )


def _reduce(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _common_options(case, handle) | _scalar_options(case, "alpha", "beta")
    options |= {"op": case.binary[0], "operators": case.operators}
    out, c = arrays.target(case), arrays.addend
    return lambda: ct.reduce(*_arguments(case, arrays), out=out, c=c, **options)


def _binary(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _common_options(case, handle) | _scalar_options(case, "alpha", "gamma")
    options |= {"op": case.binary[0], "operators": case.operators, "dtype": case.dtype}
    return lambda: ct.elementwise_binary(
        *_arguments(case, arrays), out=arrays.target(case), **options
    )


def _trinary(case: Case, arrays: _Arrays, handle: ct.Handle, _: GuardedMemory) -> Call:
    options = _common_options(case, handle) | _scalar_options(case, "alpha", "beta", "gamma")
    options |= {"op_ab": case.binary[0], "op_abc": case.binary[1], "operators": case.operators}
    return lambda: ct.elementwise_trinary(
        *_arguments(case, arrays), out=arrays.target(case), dtype=case.dtype, **options
    )


# --- plans ----------------------------------------------------------------------------------------


def _operand(x: np.ndarray, modes: str, name: str | None = None) -> ct.Operand:
    return ct.Operand(_described(x), tuple(modes), Operator(name or "identity"))


def _operation(case: Case, arrays: _Arrays) -> dict[str, Any]:
    names = case.operators or ()
    every = [names[at] if at < len(names) else None for at in range(len(case.terms) + 1)]
    inputs = tuple(map(_operand, arrays.inputs, case.terms, every))
    return {"inputs": inputs, "output": _operand(arrays.target(case), case.output)} | (
        {} if arrays.c is None else {"addend": _operand(arrays.c.array, case.output, every[-1])}
    )


def _planned(case: Case, operation: Any, handle: ct.Handle, memory: GuardedMemory) -> Any:
    """The plan, and a workspace of exactly the bytes it asks for where the caller gives it."""
    plan = handle.plan(operation, _preference(case))
    limit = case.memory.workspace
    if limit is not None and plan.required_workspace > limit:
        raise Wrong(f"workspace_limit is {limit}, required are {plan.required_workspace} bytes")
    given = memory.array(plan.required_workspace, 64) if plan.required_workspace else None
    return plan, given if case.memory.given else None


def _plan(case: Case, arrays: _Arrays, handle: ct.Handle, memory: GuardedMemory) -> Call:
    def call() -> np.ndarray:
        operation = ct.Contraction(**_operation(case, arrays))
        plan, workspace = _planned(case, operation, handle, memory)
        (alpha, beta, _), d = case.scalars, arrays.target(case)
        run = handle.contract if len(arrays.operands) == 2 else handle.contract_trinary
        run(plan, alpha, *arrays.inputs, beta or 0, arrays.addend, d, workspace)
        return d

    return call


def _reduction(case: Case, arrays: _Arrays, handle: ct.Handle, memory: GuardedMemory) -> Call:
    def call() -> np.ndarray:
        operation = ct.Reduction(
            **_operation(case, arrays), operator=BinaryOperator(case.binary[0])
        )
        plan, workspace = _planned(case, operation, handle, memory)
        (alpha, beta, _), d = case.scalars, arrays.target(case)
        handle.reduce(plan, alpha, *arrays.inputs, beta or 0, arrays.addend, d, workspace)
        return d

    return call


def _elementwise(case: Case, arrays: _Arrays, handle: ct.Handle, memory: GuardedMemory) -> Call:
    def call() -> np.ndarray:
        operators = tuple(map(BinaryOperator, case.binary))
        operation = ct.ElementwiseOperation(**_operation(case, arrays), operators=operators)
        plan, _ = _planned(case, operation, handle, memory)
        (alpha, beta, gamma), d = case.scalars, arrays.target(case)
        scalars = {1: (alpha,), 2: (alpha, gamma), 3: (alpha, 1 if beta is None else beta, gamma)}
        pairs = zip(scalars[len(case.terms)], arrays.inputs, strict=True)
        runs = handle.permute, handle.elementwise_binary, handle.elementwise_trinary
        runs[len(case.terms) - 1](plan, *(each for pair in pairs for each in pair), d)
        return d

    return call


_CALLS: dict[Verb, Callable[[Case, _Arrays, ct.Handle, GuardedMemory], Call]] = {
    Verb.CONTRACT: _contract,
    Verb.EXPRESSION: _expression,
    Verb.EINSUM: _einsum,
    Verb.PLAN: _plan,
    Verb.REDUCE: _reduce,
    Verb.REDUCE_PLAN: _reduction,
    Verb.PERMUTE: _permute,
    Verb.BINARY: _binary,
    Verb.TRINARY: _trinary,
    Verb.ELEMENTWISE_PLAN: _elementwise,
}


# --- verdicts -------------------------------------------------------------------------------------


def _check(case: Case, found: np.ndarray, wanted: Any) -> None:
    if found.shape != case.shape:
        raise Wrong(f"shape {found.shape}, not {case.shape}")
    kind = case.result.newbyteorder("=")
    if found.dtype.newbyteorder("=") != kind:
        raise Wrong(f"type {found.dtype}, not {kind}")
    if case.out is None and case.verb is not Verb.EINSUM:
        _check_order(case, found)
    if isinstance(wanted, Estimate):
        ratio = wanted.difference(found)
        if ratio:
            raise Wrong(f"the error is {ratio:.3g} times what is allowed")
    elif not np.array_equal(found, wanted):
        count = np.count_nonzero(np.asarray(found != wanted))
        raise Wrong(f"{count} of {found.size} exact elements are wrong")


def _check_order(case: Case, found: np.ndarray) -> None:
    flags = {"F": found.flags.f_contiguous, "C": found.flags.c_contiguous}
    if not flags.get(case.order, True):
        raise Wrong(f"order {case.order!r} has strides {found.strides}")


def _check_same(results: list[np.ndarray]) -> None:
    """The same call gives the same bits."""
    for other in results[1:]:
        nan = results[0].dtype.kind in "fcV"
        if not np.array_equal(results[0], other, equal_nan=nan):
            raise Wrong("the second call gives other bits")


def _check_memory(case: Case, arrays: _Arrays) -> None:
    for name, each in arrays.read(case):
        if not each.is_unchanged():
            raise Wrong(f"{name} was changed")
    if arrays.out is not None and not arrays.out.is_unchanged_between():
        raise Wrong("out was written between its elements")


def _check_peak(case: Case, used: int) -> None:
    """Whether a call that plans nothing took no more than it may, beside scalars.

    Python's objects take memory of their own, which nobody counts.
    """
    limit, asked = case.memory.limit, dict(case.preference)
    planned = asked.get("algo") == "DEFAULT_PATIENT" or asked.keys() & {"cache_mode", "autotune"}
    counted = limit is not None and not planned and not case.common.hasobject
    if counted and used > limit + SCALARS:
        raise Wrong(f"memory_limit is {limit}, {used} bytes were taken")


def _check_refused(case: Case, arrays: _Arrays, error: ct.ContractError) -> None:
    """Whether the refusal is documented, and nothing was written."""
    if not _is_documented(case, error):
        raise Wrong(f"refused: {type(error).__name__}: {error}") from error
    _check_memory(case, arrays)
    if arrays.out is not None and not arrays.out.is_unchanged():
        raise Wrong("out was written by a call that was refused")


def _is_documented(case: Case, error: ct.ContractError) -> bool:
    asked = dict(case.preference)
    limited = case.memory.limit is not None or case.memory.workspace is not None
    match error:
        case ct.InsufficientWorkspaceError():
            return limited
        case ct.NotSupportedError():
            return bool(asked.get("kernel_rank")) or "algo" in asked
    return False
