"""The public verbs of the engine: contract, and contract_expression to plan once."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from contract.api.constants import fold
from contract.api.evaluation import (
    Asked,
    array_of,
    arrays_key,
    beta_of,
    bound_call,
    cuts_of,
    data_type,
    fitting,
    number_beta,
    recalled,
    require_kind,
    written_arguments,
)
from contract.api.interop import evaluate, joined
from contract.api.request import Options, Written, call_for, repeated
from contract.api.whole import allowed, read_as, while_compiling, whole
from contract.arrays.libraries import library_of, numpy_type
from contract.arrays.protocol import Array, Arrays, Layout, is_array, require_one_kind
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import PlanPreference, TensorDescriptor, frozen, is_integer
from contract.descriptors.operators import Operator
from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.execution.bound_plan import UNSCALED, BoundCall, Call
from contract.execution.budget import LackingMemoryError
from contract.execution.executor import Scalars
from contract.execution.recording import CapturedContraction
from contract.logging import LOGGER, UNWATCHED, Level
from contract.plan.steps import Plan
from contract.planner.planner import make_plan
from contract.session.handle import Handle, handle_for
from contract.support.progress import reporting
from contract.support.text import shown

__all__ = ["ContractExpression", "contract", "contract_expression", "contract_trinary"]

MOST_KNOWN = 16  # layouts of operands that an expression remembers


@whole
def contract(
    expression: Any,
    *operands: Any,
    out: Array | None = None,
    c: Any = None,
    alpha: complex = 1,
    beta: complex | None = None,
    dtype: Any = None,
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    operators: Sequence[Operator | str | None] | None = None,
    optimize: Any = "auto",
    memory_limit: int | str | None = None,
    preference: PlanPreference | None = None,
    handle: Handle | None = None,
    stream: Any = None,
    slices: Any = None,
    executor: Any = None,
    progress: bool | None = None,
) -> Array:
    """D = alpha * op(T1) * op(T2) * ... + beta * op(C), summed over the modes that D has not.

    ``contract("abc,kb->ac", A, B)`` sums over b and k; the interleaved form
    ``contract(A, ["a", "b"], B, ["b", "c"], ["a", "c"])`` takes any hashable labels. Modes
    repeated in an operand take its diagonal, repeated in the output they write a diagonal.
    Extent 1 broadcasts. The result is a new array, column-major for ``order="F"``, row-major
    for "C", like the operands for "A", in the cheapest layout for "K"; or it is written to
    ``out``. C has the modes of the output in any layout; beta is 1 where C is given and beta
    is not. With alpha or beta 0 the scaled tensors are not read. ``operators`` has one unary
    operator (or None) for each operand, and may have one more for C. ``optimize`` is
    opt_einsum's; ``dtype`` is the type of products, sums and a new result, if not the operands'
    common one; ``preference`` says how to plan, tune and cache (None: as the handle prefers).

    ``memory_limit`` (bytes, "2GB", or "80%" of what is free when it is planned) bounds the result
    and the workspace together. What needs more, or more than is free, is computed in slices: modes
    are cut into chunks, chosen so that few FLOPs are repeated, or as ``slices`` says: a mapping
    from modes to numbers of chunks, or a sequence of modes. ``executor`` (of concurrent.futures or
    mpi4py, or a dask.distributed.Client) runs slices in parallel. ``progress`` shows a bar on a
    terminal: True always, False never, None for what takes longer than a second.

    CuPy arrays give a CuPy array and run on their device: on ``stream``, or on CuPy's current
    stream, without waiting for it. All arrays of a call lie on one device.

    Raises InvalidValueError (a ValueError) for expressions, extents and options that break a
    rule, UnsupportedTypeError (a TypeError) for types, InsufficientWorkspaceError (a
    MemoryError) over the memory limit. ``out`` is untouched when a call is refused.
    Source: numpy.einsum for the notation, cuTENSOR's contraction for alpha, beta, C and types.
    """
    handle = handle_for(handle, operands if type(expression) is str else (expression, *operands))
    head = "contract", order, dtype, compute_type, operators, optimize, memory_limit, preference
    factor = 0 if beta is None and c is None else number_beta(c, beta)
    plain = slices is executor is progress is stream is None
    if plain and factor is not None:
        found = recalled(handle, head, expression, operands, out, c, (alpha, factor, 0))
        if found is not None:
            return found
    with (
        LOGGER.call(
            "contract",
            {
                "expression": expression,
                "operands": operands,
                "out": out,
                "c": c,
                "alpha": alpha,
                "beta": beta,
                "dtype": dtype,
                "order": order,
                "compute_type": compute_type,
                "operators": operators,
                "optimize": optimize,
                "memory_limit": memory_limit,
                "preference": preference,
                "stream": stream,
                "slices": slices,
                "executor": executor,
                "progress": progress,
            },
        )
        if LOGGER.active
        else UNWATCHED,
        reporting(progress),
    ):
        written, arrays = written_arguments(expression, operands)
        options = Options(
            *(order, compute_type, frozen(operators), frozen(optimize), memory_limit, preference),
            dtype=data_type(dtype),
            same=repeated(arrays),
            slices=cuts_of(slices),
        )
        scalars = alpha, beta_of(c, beta), 0
        by = None if executor is None else _spread(executor, handle)
        key = head if slices is None else None
        return evaluate(Asked(handle, written, options, scalars, stream, by, key), arrays, out, c)


def _spread(executor: Any, handle: Handle) -> Callable[[Call], Call]:
    """What lets workers compute the slices of a call."""
    from contract.slices.distributed import spread  # few programs have workers

    return partial(spread, executor, handle)


@whole
def contract_trinary(
    expression: Any, *operands: Any, d: Any = None, beta: complex | None = None, **options: Any
) -> Array:
    """E = alpha * op(A) * op(B) * op(C) + beta * op(D): ``contract`` of three operands.

    ``contract_trinary("ab,bc,cd->ad", A, B, C)``; the addend is called ``d`` here, the other
    options are ``contract``'s. Source: cuTENSOR's trinary contraction.
    """
    handle_for(options.get("handle"), operands)  # which reads what is to be logged
    asked: dict[str, Any] = {}
    if LOGGER.active:
        asked = {"expression": expression, "operands": operands, "d": d, "beta": beta, **options}
    with LOGGER.call("contract_trinary", asked) if LOGGER.active else UNWATCHED:
        if "c" in options:
            raise InvalidValueError("The addend of contract_trinary is called d.")
        _, arrays = written_arguments(expression, operands)
        count = len(arrays)
        if count != 3:
            raise InvalidValueError(f"contract_trinary takes three operands: it got {count}.")
        return contract(expression, *operands, c=d, beta=beta, **options)


def contract_expression(
    expression: Any,
    *operands: Any,
    dtype: Any = "float64",
    constants: Iterable[int] = (),
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    operators: Sequence[Operator | str | None] | None = None,
    optimize: Any = "auto",
    memory_limit: int | str | None = None,
    preference: PlanPreference | None = None,
    handle: Handle | None = None,
    slices: Any = None,
    executor: Any = None,
    progress: bool | None = None,
) -> "ContractExpression":
    """A callable that evaluates ``expression`` for operands of the given shapes, planned once.

    An operand is a shape (a packed column-major tensor of ``dtype``), a TensorDescriptor, or an
    array: an array is a constant, kept and used in every call. Products of constants alone are
    computed here, once: later changes of their elements do not count. ``constants`` may name the
    positions of the arrays, as opt_einsum asks for. The other options are ``contract``'s. It is
    planned for ``handle``, or where the constants lie, else for the host.

    Raises what ``contract`` raises for the same request.
    """
    handle_for(handle, operands)  # which reads what is to be logged
    asked = (
        {
            "expression": expression,
            "operands": operands,
            "dtype": dtype,
            "constants": constants,
            "order": order,
            "compute_type": compute_type,
            "operators": operators,
            "optimize": optimize,
            "memory_limit": memory_limit,
            "preference": preference,
            "slices": slices,
            "executor": executor,
            "progress": progress,
        }
        if LOGGER.active
        else {}
    )
    with (
        LOGGER.call("contract_expression", asked) if LOGGER.active else UNWATCHED,
        reporting(progress),
    ):
        written, operands = written_arguments(expression, operands)
        options = Options(
            *(order, compute_type, frozen(operators), frozen(optimize), memory_limit, preference),
            slices=cuts_of(slices),
        )
        try:
            kind = np.dtype(numpy_type(dtype))
        except TypeError:
            raise UnsupportedTypeError(
                f"dtype is a NumPy data type: it is {shown(dtype)}."
            ) from None
        given = tuple(_operand(x, kind) for x in operands)
        _check_constants(constants, given)
        return ContractExpression(written, given, options, handle, executor, progress)


def _check_constants(constants: Any, given: Sequence[Any]) -> None:
    if not np.iterable(constants) or isinstance(constants, str):
        raise InvalidValueError(
            f"constants are positions of operands: they are {shown(constants)}."
        )
    for at in constants:
        arrays = [i for i, x in enumerate(given) if is_array(x)]
        if not is_integer(at) or at not in arrays:
            raise InvalidValueError(f"Constant {shown(at)} must be an array among the operands.")


def _operand(x: Any, dtype: np.dtype[Any]) -> TensorDescriptor | Array:
    """A constant array, or what an operand will be."""
    return x if is_array(x) or isinstance(x, TensorDescriptor) else _packed(x, dtype)


def _packed(shape: Any, dtype: np.dtype[Any]) -> TensorDescriptor:
    try:
        return TensorDescriptor(tuple(shape), None, dtype.name)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(
            f"An operand is a shape, a TensorDescriptor or an array: {shown(shape)} is none."
        ) from None


def _kept(arrays: Arrays, x: Any, name: str) -> Any:
    """``x`` as a plain array, or as the library's that it is."""
    return array_of(arrays, name, x) if library_of(x) is None else x


def _layout(arrays: Arrays, x: Any) -> Layout:
    """The layout of a constant, or the one that a new array of the descriptor would have.

    A library's array counts as packed: it is planned for when it is first used.
    """
    library = library_of(x)
    if library is not None:
        x = TensorDescriptor(tuple(x.shape), None, library.dtype(x).name)
    if not isinstance(x, TensorDescriptor):
        return arrays.layout(x)
    dtype = np.dtype(x.dtype)
    strides = tuple(step * dtype.itemsize for step in x.steps)
    return Layout(x.extents, strides, dtype, arrays.new_alignment(dtype))


MOST_TIMED = 3  # calls of an explanation with operands; the shortest counts
TIMED_SECONDS = 1.0  # after so many no further call is timed


class ContractExpression:
    """An expression planned for operands of fixed shapes and types; call it with arrays.

    Arrays in another memory order than planned work and are planned once more, on first sight;
    so are CuPy arrays, where neither a handle nor a constant says where to compute. Printing it
    shows its plan; ``explain`` says why.
    """

    def __init__(
        self,
        written: Written,
        operands: tuple[TensorDescriptor | Array, ...],
        options: Options,
        handle: Handle | None,
        executor: Any = None,
        progress: bool | None = None,
    ) -> None:
        given = {at: x for at, x in enumerate(operands) if is_array(x)}
        self._operands = operands
        self._executor = executor
        self._progress = progress
        self._handle = handle_for(handle, tuple(given.values()))
        self._bound = handle is not None or bool(given)  # to where it computes
        self._elsewhere: dict[Handle, ContractExpression] = {}
        self._arrays = self._handle.arrays
        require_one_kind(self._arrays, [(f"operand {at}", x) for at, x in given.items()])
        constants = {at: _kept(self._arrays, x, f"operand {at}") for at, x in given.items()}
        layouts = [_layout(self._arrays, constants.get(at, x)) for at, x in enumerate(operands)]
        foldable = {at: x for at, x in constants.items() if library_of(x) is None}
        folded = fold(self._handle, written, layouts, foldable, options)
        self._written, self._options = folded.written, folded.options
        self._positions = folded.kept
        fixed = [constants.get(at) for at in folded.kept] + list(folded.constants)
        self._constants = {at: x for at, x in enumerate(fixed) if x is not None}
        self._layouts = [layouts[at] for at in folded.kept]
        self._layouts += map(self._arrays.layout, folded.constants)
        self._variable = [at for at, x in enumerate(fixed) if x is None]
        self._unread: Callable[..., Any]
        self._call: Call
        self._tuning: bool
        self._known: dict[Hashable, Call]
        self._plan()

    def _plan(self) -> None:
        """Take the plan for the layouts the expression was made with; a tuned one for a while.

        ``_known`` are the calls that have nothing else to ask, by the layouts of their arrays.
        """
        self._call = call_for(self._handle, self._written, self._layouts, self._options)
        self._tuning = not self._call.loaded.settled
        self._known = {}
        if self._is_plain:
            self._known[self._arrays.flat(self._layouts)] = self._call

    @property
    def _is_plain(self) -> bool:
        """Whether a call is its plan and nothing else."""
        return not self._tuning and self._executor is None and self._progress is None

    @property
    def plan(self) -> Plan:
        """The plan for the layouts the expression was made with."""
        return self._call.loaded.plan

    def __call__(
        self,
        *operands: Any,
        out: Array | None = None,
        c: Any = None,
        alpha: complex = 1,
        beta: complex | None = None,
        stream: Any = None,
    ) -> Array:
        """The result for ``operands``: one array for each operand that is no constant."""
        if stream is None and not LOGGER.active:
            arrays: Sequence[Any] = operands
            if self._constants and len(operands) == len(self._variable):
                arrays = self._with_constants(operands, self._constants)
            try:
                if out is c is beta is None and type(alpha) is int and alpha == 1:
                    call = self._known.get(self._arrays.layouts(arrays))
                    if call is not None:
                        product = call.unscaled
                        return call.again(arrays, UNSCALED) if product is None else product(arrays)
                else:
                    factor = number_beta(c, beta)
                    call = (
                        None
                        if factor is None
                        else self._known.get(arrays_key(self._arrays, arrays, out, c, factor))
                    )
                    if call is not None:
                        return call.again(arrays, (alpha, factor, 0), out, c)
            except LackingMemoryError:
                LOGGER.log(Level.HINT, "too little memory is free: the call is planned in slices")
        asked = LOGGER.active and self._said(operands, out, c, alpha, beta, stream)
        with LOGGER.call("ContractExpression", asked) if asked else UNWATCHED:
            handle = self._handle if self._bound else handle_for(None, operands)
            if handle is not self._handle:
                planned = self._planned_for(handle)
                return planned(*operands, out=out, c=c, alpha=alpha, beta=beta, stream=stream)
            arrays = self._checked(operands, self._constants)
            with reporting(self._progress):
                result = self._evaluated(handle, arrays, out, c, alpha, beta, stream)
            if self._tuning:
                self._plan()
            elif self._is_plain:
                self._keep(arrays, out, c, (alpha, beta_of(c, beta), 0))
            return result

    def _said(
        self, operands: Sequence[Any], out: Any, c: Any, alpha: Any, beta: Any, stream: Any
    ) -> dict[str, Any]:
        """The arguments of a call for the log."""
        given = {"out": out, "c": c, "alpha": alpha, "beta": beta, "stream": stream}
        return {"expression": self._written, "operands": operands, **given}

    def _keep(self, arrays: Sequence[Any], out: Any, c: Any, scalars: Scalars) -> None:
        """Let the next call on such arrays find its plan at once."""
        key = arrays_key(self._arrays, arrays, out, c, scalars[1])
        if key is None or len(self._known) == MOST_KNOWN:
            return
        bound = bound_call(self._asked(self._handle, scalars), arrays, out, c)
        if bound.call.loaded.settled:
            self._known[key] = bound.call

    def capture(
        self,
        *operands: Any,
        out: Array | None = None,
        c: Any = None,
        alpha: complex = 1,
        beta: complex | None = None,
        stream: Any = None,
    ) -> CapturedContraction:
        """The call for these arrays and scalars, recorded and not run: ``.replay()`` runs it.

        On a device it becomes a CUDA graph; its memory comes from the pool of ``stream``, or of
        CuPy's current stream. InvalidValueError where that is capturing already.
        """
        asked = LOGGER.active and self._said(operands, out, c, alpha, beta, stream)
        with LOGGER.call("ContractExpression.capture", asked) if asked else UNWATCHED:
            handle = self._handle if self._bound else handle_for(None, operands)
            if handle is not self._handle:
                planned = self._planned_for(handle)
                return planned.capture(
                    *operands, out=out, c=c, alpha=alpha, beta=beta, stream=stream
                )
            arrays = self._checked(operands, self._constants)
            scalars = alpha, beta_of(c, beta), 0
            with self._arrays.on(stream):
                wanted = self._asked(handle, scalars)
                return CapturedContraction(_with_memory(wanted, bound_call(wanted, arrays, out, c)))

    def explain(
        self, plot: str | PathLike[str] | None = None, operands: Sequence[Any] | None = None
    ) -> str:
        """What the plan does and costs: scaling, steps, candidates, and why the chosen ones won.

        ``plot`` names a file (.svg, .png or .pdf) for a picture of the contraction tree, which
        needs matplotlib. With ``operands`` the expression is called on them, up to three times in
        a second, and the shortest time stands beside the predicted one.
        """
        from contract.explain.table import explain  # few programs ask

        measured = None if operands is None else self._shortest_time(operands)
        loaded = self._call.loaded
        if plot is not None:
            from contract.explain.picture import draw

            draw(loaded.plan, plot)
        plan, machine = loaded.plans[0], self._handle.executor.machine
        again = make_plan(plan.operation, plan.preference, machine)  # with all that was weighed
        return "\n\n".join((*loaded.notes, explain(again, measured)))

    def _shortest_time(self, operands: Sequence[Any]) -> float:
        """Seconds of the fastest of a few calls."""
        times: list[float] = []
        while len(times) < MOST_TIMED and sum(times) < TIMED_SECONDS:
            times.append(self._handle.executor.timed(lambda: self(*operands)).wait())
        return min(times)

    def __str__(self) -> str:
        return str(self._call.loaded)

    def __repr__(self) -> str:
        operands = ", ".join(str(shape) for shape, *_ in self._layouts)
        return f"<ContractExpression {self._written!r} for {operands}>"

    def _planned_for(self, handle: Handle) -> "ContractExpression":
        """The same expression for the device of a handle; made once."""
        if handle not in self._elsewhere:
            self._elsewhere[handle] = ContractExpression(
                *(self._written, self._operands, self._options, handle),
                *(self._executor, self._progress),
            )
        return self._elsewhere[handle]

    def _with_constants(self, operands: Sequence[Any], constants: Mapping[int, Any]) -> list[Any]:
        given = iter(operands)
        places = range(len(self._layouts))
        return [constants[at] if at in constants else next(given) for at in places]

    def _checked(self, operands: Sequence[Any], constants: Mapping[int, Any]) -> list[Any]:
        if len(operands) != len(self._variable):
            raise InvalidValueError(
                f"The expression takes {len(self._variable)} operands: {len(operands)} were given."
            )
        given = joined(self._with_constants(operands, constants))
        require_kind(self._arrays, given)
        every = list(given)
        for at in self._variable:
            every[at] = _kept(self._arrays, given[at], f"operand {self._positions[at]}")
            x, (shape, _, dtype, _) = every[at], self._layouts[at]
            name = f"Operand {self._positions[at]}"
            library = library_of(x)
            found = x.dtype if library is None else library.dtype(x)
            if x.shape != shape:
                raise InvalidValueError(
                    f"{name} was planned with shape {shape}: it has {tuple(x.shape)}."
                )
            if found != dtype:
                raise UnsupportedTypeError(
                    f"{name} was planned with type {dtype.name}: it has {found.name}."
                )
        return every

    def _evaluated(
        self,
        handle: Handle,
        arrays: Sequence[Any],
        out: Any = None,
        c: Any = None,
        alpha: complex = 1,
        beta: complex | None = None,
        stream: Any = None,
    ) -> Any:
        return evaluate(self._asked(handle, (alpha, beta_of(c, beta), 0), stream), arrays, out, c)

    def _asked(self, handle: Handle, scalars: Scalars, stream: Any = None) -> Asked:
        by = None if self._executor is None else _spread(self._executor, handle)
        return Asked(handle, self._written, self._options, scalars, stream, by)

    def _traced(self, constants: Sequence[Any], *operands: Any, **options: Any) -> Any:
        """The call in a graph, where the constants are inputs as well."""
        handle = self._handle if self._bound else handle_for(None, operands)
        arrays = self._checked(operands, dict(zip(self._constants, constants, strict=True)))
        return self._evaluated(handle, arrays, **options)


def _with_memory(asked: Asked, bound: BoundCall) -> BoundCall:
    """The call, or one in slices for which there is memory now."""
    try:
        bound.call.require_memory()
    except LackingMemoryError as error:
        return fitting(asked, bound, error)
    return bound


@while_compiling
def _allow(expression: ContractExpression) -> None:
    expression._unread = allowed(lambda *given, **options: expression._traced(*given, **options))


def _read_in_place(expression: ContractExpression, *operands: Any, **options: Any) -> Any:
    """What torch.compile reads in the place of an expression's call."""
    _allow(expression)
    return expression._unread(tuple(expression._constants.values()), *operands, **options)


read_as(ContractExpression.__call__, _read_in_place)


@whole
def _made_and_called(
    given: Sequence[Any], options: Any, operands: Sequence[Any], others: Any
) -> Array:
    return contract_expression(*given, **options)(*operands, **others)


def _made_when_called(*given: Any, **options: Any) -> Any:
    """What torch.compile reads in the place of ``contract_expression``."""
    return lambda *operands, **others: _made_and_called(given, options, operands, others)


read_as(contract_expression, _made_when_called)
