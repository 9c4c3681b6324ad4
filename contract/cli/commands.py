"""The command line: expressions on files, plans explained, a demo, plans on disk, warming up.

    python -m contract "abc,kb->ac" A.npy B.npy -o C.npy
    python -m contract explain "abc,kb->ac" a=64,b=32,c=8,k=16
    python -m contract demo --size medium
    python -m contract cache show
    python -m contract calibrate
    python -m contract warmup

A first argument that is the name of a subcommand is one; anything else is an expression.
Exit codes: 0 done, 1 a check of the demo failed, 2 refused (one line on stderr), 130 interrupted,
141 nobody reads the output any more.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from contract import (
    ComputeType,
    Handle,
    TensorDescriptor,
    __version__,
    contract,
    contract_expression,
)
from contract.cli import demo
from contract.cli.array_files import BFLOAT16, ArrayFile, check_writable, read, write
from contract.cli.warmup import COMMON, common_kernels, warm_up
from contract.descriptors.operations import Algo, OperationDescriptor, PlanPreference
from contract.descriptors.text import notation
from contract.errors import CacheFileError, ContractError, InvalidValueError
from contract.host.executor import HostExecutor
from contract.machines.constants import constants
from contract.machines.cpu import Cpu
from contract.planner.validation import operation_extents
from contract.session.calibrating import Calibration, calibrated
from contract.storage.calibration import calibration_path, write_calibration
from contract.storage.plans import Record, identity_of, plan_files_in, read_plans
from contract.support.config import Settings, user_cache_directory
from contract.support.memory_size import memory_amount
from contract.support.progress import counted, has_bars
from contract.support.text import Row, aligned, count, seconds

__all__ = ["main"]

Array = NDArray[Any]

OK, CHECK_FAILED, REFUSED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
PRINTED_WHOLE = 64  # elements
FIRST_ELEMENTS = 6
LARGEST_OVERHEAD = 0.01  # seconds; larger constants are rates and shares
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what is refused is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse after --help and --version
        return int(stop.code or 0)
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("contract: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ContractError, OSError, MemoryError) as error:
        _abandon_stdout()
        print(f"contract: error: {_message(error)}", file=sys.stderr)
        return REFUSED


def _run(arguments: list[str]) -> int:
    """Dispatch on the first argument alone: a file can never be first."""
    if arguments and arguments[0] in SUBCOMMANDS:
        return SUBCOMMANDS[arguments[0]](arguments[1:])
    return _contract_files(arguments)


def _message(error: BaseException) -> str:
    """One line, the file before the reason."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) and not isinstance(error, ContractError):
        return f"out of memory. {text}".strip()
    return text


def _abandon_stdout() -> None:
    """If stdout takes no more, let it end in nothing: the interpreter flushes it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(text: str) -> None:
    """Print with what the terminal's encoding has; the rest becomes question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


# --- an expression on files ------------------------------------------------------------------


def _contract_files(arguments: list[str]) -> int:
    options = _files_parser().parse_intermixed_args([_spaced(text) for text in arguments])
    if options.output is not None:
        check_writable(options.output)
    operands = [read(source, options.bfloat16) for source in options.operands]
    if options.explain:
        descriptors = [_descriptor(operand) for operand in operands]
        planned = contract_expression(options.expression, *descriptors, **_how(options))
        _show(planned.explain(operands=operands))
    result = np.asarray(contract(options.expression, *operands, **_how(options)))
    if options.output is None:
        _show(_summary(result))
    else:
        _note_raw_type(options.output, result)
        write(options.output, result)
    return OK


def _spaced(text: str) -> str:
    """An expression that starts with its arrow is no option; spaces mean nothing in it."""
    return f" {text}" if text.startswith("->") else text


def _how(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords that planning and running share."""
    return {
        "order": options.order,
        "compute_type": options.compute_type,
        "optimize": options.optimize,
        "memory_limit": options.memory_limit,
    }


def _descriptor(array: Array) -> TensorDescriptor:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorDescriptor(array.shape, strides, array.dtype.name)


def _note_raw_type(output: ArrayFile, result: Array) -> None:
    if result.dtype == BFLOAT16:
        print(
            f"contract: note: {output} holds raw 2-byte items (V2), .npy has no name for "
            "bfloat16; --bfloat16 reads them.",
            file=sys.stderr,
        )


def _summary(result: Array) -> str:
    """Shape, type, size, norm, and all elements of a small result or the first of a large one."""
    lines = [
        f"shape   {' x '.join(map(str, result.shape)) or 'scalar'} ({_layout(result)})",
        f"dtype   {result.dtype.name}, {_size(result.nbytes)}",
        f"norm    {_norm(result):.12g}",
    ]
    if result.size <= PRINTED_WHOLE:
        return "\n".join([*lines, np.array2string(result, threshold=PRINTED_WHOLE + 1)])
    first = " ".join(f"{x:.6g}" for x in islice(result.T.flat, FIRST_ELEMENTS))
    return "\n".join([*lines, f"first   {first} ... (first mode fastest)"])


def _layout(array: Array) -> str:
    if array.flags.f_contiguous:
        return "column-major"
    return "row-major" if array.flags.c_contiguous else "strided"


def _norm(array: Array) -> float:
    """sqrt(sum |x|^2), in the wide type: a norm of float16 is no longer inf."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    flat = array.ravel(order="K").astype(wide, copy=False)
    return float(np.linalg.norm(flat))


def _size(count: float) -> str:
    """Bytes in the largest binary unit below them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


# --- explain ---------------------------------------------------------------------------------


def _explain(arguments: list[str]) -> int:
    options = _explain_parser().parse_intermixed_args(arguments)
    extents = _merged(options.extents)
    shapes = _shapes(options.expression, extents)
    descriptors = [TensorDescriptor(shape, None, options.dtype) for shape in shapes]
    planned = contract_expression(options.expression, *descriptors, **_how(options))
    _show(planned.explain(options.plot))
    return OK


def _merged(groups: Sequence[Sequence[tuple[str, int]]]) -> dict[str, int]:
    """Extents by label; a label may be given once."""
    extents: dict[str, int] = {}
    for label, extent in (pair for group in groups for pair in group):
        if label in extents:
            raise InvalidValueError(
                f"Mode {label!r} has two extents: {extents[label]} and {extent}."
            )
        extents[label] = extent
    return extents


def _shapes(expression: str, extents: dict[str, int]) -> list[tuple[int, ...]]:
    """The shape of every operand; every label needs an extent, every extent a label."""
    operands = _written_labels(expression)
    labels = {label for operand in operands for label in operand}
    missing, unknown = sorted(labels - extents.keys()), sorted(extents.keys() - labels)
    if missing:
        raise InvalidValueError(f"Extents are missing for the modes: {', '.join(missing)}.")
    if unknown:
        raise InvalidValueError(f"Extents of modes no operand has: {', '.join(unknown)}.")
    return [tuple(extents[label] for label in operand) for operand in operands]


def _written_labels(expression: str) -> list[str]:
    """The labels of every operand as written; whether they make sense is the planner's to say."""
    inputs, _, _ = "".join(expression.split()).partition("->")
    if "." in inputs:
        raise InvalidValueError("An ellipsis has no extents: write every mode with a letter.")
    return inputs.split(",")


# --- demo ------------------------------------------------------------------------------------


def _demo(arguments: list[str]) -> int:
    chosen = _demo_parser().parse_args(arguments)
    occupied, virtual = demo.SIZES[chosen.size]
    options = demo.DemoOptions(
        occupied=chosen.occupied or occupied,
        virtual=chosen.virtual or virtual,
        dtype=chosen.dtype,
        repeats=chosen.repeat,
        seed=chosen.seed,
    )
    progress = demo.Progress(sys.stderr)
    try:
        report = demo.run(options, progress)
    finally:
        progress.clear()
    _show(demo.render(report, unicode=_prints_unicode()))
    return OK if report.good else CHECK_FAILED


def _prints_unicode() -> bool:
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- cache -----------------------------------------------------------------------------------


def _cache(arguments: list[str]) -> int:
    options = _cache_parser().parse_args(arguments)
    kept = Settings.from_environment().cache_directory
    directory = options.directory or kept or user_cache_directory()
    CACHE_ACTIONS[options.action](directory)
    return OK


def _show_path(directory: Path) -> None:
    _show(str(directory))


def _show_plans(directory: Path) -> None:
    """For each device its plans: what is computed, and what was decided."""
    files = plan_files_in(directory)
    if not files:
        _show(f"no plans in {directory}")
    for path in files:
        _show(_plans_table(path))


def _plans_table(path: Path) -> str:
    """A title and a row for each plan; why the file is refused, where it is."""
    try:
        identity = identity_of(path)
        records = read_plans(path, identity)
    except CacheFileError as error:
        return f"refused: {_message(error)}"
    written = path.stat()
    age = timedelta(seconds=int(max(time.time() - written.st_mtime, 0)))
    title = f"{identity}: {len(records)} plans, {_size(written.st_size)}, {age} old, {path}"
    head = ("operation", "extents", "type", "decided", "measured")
    return "\n".join((title, *aligned((head, *map(_plan_row, records)))))


def _plan_row(record: Record) -> Row:
    operation = record.operation
    return (
        notation(operation),
        ",".join(f"{mode}={n}" for mode, n in _extents_of(operation).items()),
        operation.dtype,
        _decided(record.decided),
        "" if record.seconds is None else seconds(record.seconds),
    )


def _decided(preference: PlanPreference) -> str:
    """``candidate 2 of GETT, path ((0, 1), (0, 1))``: what planning need not look for."""
    algo = "" if preference.algo is Algo.DEFAULT else f" of {preference.algo.name}"
    path = f", path {preference.path}" if isinstance(preference.path, tuple) else ""
    return f"candidate {preference.kernel_rank}{algo}{path}"


def _extents_of(operation: OperationDescriptor) -> dict[str, int]:
    """By label."""
    return dict(zip(operation.labels, operation_extents(operation), strict=True))


def _remove_plans(directory: Path) -> None:
    files = plan_files_in(directory)
    for path in files:
        path.unlink(missing_ok=True)
    _show(f"{len(files)} files removed from {directory}")


CACHE_ACTIONS: dict[str, Callable[[Path], None]] = {
    "path": _show_path,
    "show": _show_plans,
    "clear": _remove_plans,
}

# --- calibrate -------------------------------------------------------------------------------


def _calibrate(arguments: list[str]) -> int:
    options = _calibrate_parser().parse_args(arguments)
    directory = options.directory or user_cache_directory()
    progress = demo.Progress(sys.stderr)
    with Handle(compile="wait") as handle:
        executor = handle.executor
        assert isinstance(executor, HostExecutor)
        path = calibration_path(directory, executor.processor)
        if options.remove:
            _show(f"{'removed' if path.exists() else 'there is no'} {path}")
            path.unlink(missing_ok=True)
            return OK
        try:
            found = calibrated(executor, progress)
        finally:
            progress.clear()
        _show(_calibration_text(executor.built_in, found))
        if not found.is_better:
            _show("not kept: the built-in model chooses better")
            return OK
        write_calibration(path, found.cpu, executor.processor)
        _show(f"kept in {path}")
    return OK


def _calibration_text(built_in: Cpu, found: Calibration) -> str:
    """Every constant as it is built in and as it was fitted, and what the models choose."""
    before, after = constants(built_in), constants(found.cpu)
    head = ("constant", "built in", "fitted")
    rows = [(name, _measure(before[name]), _measure(after[name])) for name in before]
    choices = [
        f"{name} model: within 10 % of the best candidate in {each.good} of {len(each.ratios)} "
        f"checks, {each.lost:.1%} of time lost"
        for name, each in (("built-in", found.before), ("fitted", found.after))
    ]
    return "\n".join((*aligned((head, *rows)), *choices))


def _measure(constant: float) -> str:
    """Seconds of an overhead, a rate per second, or a share."""
    if constant < LARGEST_OVERHEAD:
        return seconds(constant)
    return f"{count(constant)}/s" if constant > 1e3 else f"{constant:.2f}"


# --- warmup -----------------------------------------------------------------------------------


def _warmup(arguments: list[str]) -> int:
    options = _warmup_parser().parse_args(arguments)
    with Handle(kernels="numba", compile="wait") as handle:
        kernels = common_kernels(handle, options.types or COMMON)
        if not has_bars():
            _show(f"{len(kernels)} functions, some seconds each; a bar would need tqdm")
        with counted(kernels, len(kernels), "function") as shown:
            found = warm_up(shown)
    took = f"compiled {found.compiled} functions in {found.seconds:.0f} s"
    _show(f"{took}, {found.there} were there")
    return OK


SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "explain": _explain,
    "demo": _demo,
    "cache": _cache,
    "calibrate": _calibrate,
    "warmup": _warmup,
}


# --- arguments -------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Raises where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise InvalidValueError(f"{message} (try --help)")


def _parser(name: str, description: str) -> _Parser:
    formatter = argparse.RawDescriptionHelpFormatter
    return _Parser(
        prog=name, description=description, formatter_class=formatter, allow_abbrev=False
    )


def _files_parser() -> _Parser:
    parser = _parser("contract", f"{__doc__}")
    parser.add_argument("expression", help='Einstein notation, such as "abc,kb->ac"')
    parser.add_argument(
        "operands",
        nargs="*",
        type=_array_file,
        metavar="FILE",
        help="A.npy, data.npz with one array, or data.npz:name",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_array_file,
        metavar="FILE",
        help="C.npy, or data.npz:name, which keeps the other arrays; else a summary is printed",
    )
    parser.add_argument("--explain", action="store_true", help="print the plan and times as well")
    parser.add_argument(
        "--bfloat16", action="store_true", help="read raw 2-byte items (V2) as bfloat16"
    )
    parser.add_argument("--version", action="version", version=f"contract {__version__}")
    _add_planning(parser)
    return parser


def _explain_parser() -> _Parser:
    parser = _parser("contract explain", "The plan of an expression, its FLOPs and bytes, no data.")
    parser.add_argument("expression", help='Einstein notation, such as "abc,kb->ac"')
    parser.add_argument(
        "extents",
        nargs="*",
        type=_extents,
        metavar="MODE=EXTENT",
        help="the extent of every mode: a=64,b=32",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float64", metavar="DTYPE")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the contraction tree: .svg, .png or .pdf"
    )
    _add_planning(parser)
    return parser


def _demo_parser() -> _Parser:
    parser = _parser(
        "contract demo",
        "Solve coupled-cluster doubles with generated integrals; time and check each contraction.",
    )
    parser.add_argument("--size", choices=tuple(demo.SIZES), default="small")
    parser.add_argument("--occupied", type=_positive, metavar="N", help="spin orbitals")
    parser.add_argument("--virtual", type=_positive, metavar="N", help="spin orbitals")
    parser.add_argument("--dtype", choices=tuple(demo.TOLERANCE), default="float64")
    parser.add_argument("--repeat", type=_positive, default=5, metavar="N", help="timings of each")
    parser.add_argument("--seed", type=_count, default=2026, help="of the generated integrals")
    return parser


def _cache_parser() -> _Parser:
    parser = _parser("contract cache", "Plans on disk: where they are, what they are, remove them.")
    parser.add_argument("action", choices=tuple(CACHE_ACTIONS))
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="else that of CONTRACT_CACHE, else the user's cache directory",
    )
    return parser


def _calibrate_parser() -> _Parser:
    parser = _parser(
        "contract calibrate",
        "Fit the host's model to this machine: two minutes in which nothing else should run.",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="else the user's cache directory"
    )
    parser.add_argument(
        "--remove", action="store_true", help="use the built-in model again, measure nothing"
    )
    return parser


def _warmup_parser() -> _Parser:
    parser = _parser(
        "contract warmup", "Compile what common calls need, once on a machine; about a minute."
    )
    parser.add_argument(
        "types", nargs="*", metavar="TYPE", help=f"data types; else {', '.join(COMMON)}"
    )
    return parser


def _add_planning(parser: _Parser) -> None:
    parser.add_argument(
        "--order", choices=("F", "C", "K"), default="F", help="of the result; K: the cheapest"
    )
    names = ", ".join(kind.value for kind in ComputeType)
    parser.add_argument(
        "--compute-type", type=_compute_type, metavar="TYPE", help=f"minimum accuracy: {names}"
    )
    parser.add_argument(
        "--optimize", default="auto", metavar="METHOD", help="contraction path, as opt_einsum has"
    )
    parser.add_argument(
        "--memory-limit", type=_amount, metavar="BYTES", help="such as 1000000, 1.5GiB or 80%%"
    )


def _array_file(text: str) -> ArrayFile:
    try:
        return ArrayFile.parse(text)
    except InvalidValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _compute_type(text: str) -> ComputeType:
    for kind in ComputeType:
        if kind.value == text.upper():
            return kind
    names = ", ".join(kind.value for kind in ComputeType)
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {names}")


def _amount(text: str) -> int | str:
    try:
        return memory_amount("the limit", text)
    except InvalidValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _extents(text: str) -> list[tuple[str, int]]:
    """``a=64,b=32`` -> [("a", 64), ("b", 32)]."""
    return [_extent(part.strip()) for part in text.split(",") if part.strip()]


def _extent(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([^\W\d_])\s*=\s*([0-9]+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a letter and an extent of 0 or more, such as a=64"
        )
    return match[1], int(match[2])


def _count(text: str) -> int:
    if re.fullmatch("[0-9]+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _positive(text: str) -> int:
    value = _count(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
