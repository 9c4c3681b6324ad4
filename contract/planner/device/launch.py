"""What a launch is, as data: the kernel's source, its grid, and its argument struct.

The struct's layout is that of C: every field at a multiple of its alignment. Pointers and scalars
are known only when the kernel is launched; everything else is there from the start.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from math import copysign, inf

from contract.plan.steps import Scalar

__all__ = [
    "Arguments",
    "BlasCall",
    "DeviceCall",
    "Fields",
    "KernelCall",
    "MapType",
    "MatrixLayout",
    "Pointer",
    "PointerKind",
    "ScalarField",
    "TensorMap",
    "entry_stub",
]

Three = tuple[int, int, int]
MOST_ARGUMENT_BYTES = 4096


class PointerKind(Enum):
    """Where a pointer of a launch points."""

    SLOT = "slot"  # the tensor in a slot of the plan
    SCRATCH = "scratch"  # workspace of the step itself


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address ``bytes`` from the start of a slot's tensor or of the step's scratch memory."""

    memory: PointerKind
    slot: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScalarField:
    """A scalar of the execution stored as ``dtype`` at ``offset`` of the struct."""

    offset: int
    scalar: Scalar
    dtype: str


class MapType(Enum):
    """What the elements of a tensor map are."""

    BITS16 = "16 bits as they are"
    TF32 = "float32, rounded to tf32 as it is copied"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How TMA sees a tensor: up to five modes, of which the first has stride 1.

    ``strides`` (bytes) are those of the other modes; ``box`` is what one copy moves, in rows of
    ``swizzle`` bytes. Extents count elements.
    """

    pointer: Pointer
    type: MapType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """An argument struct: its bytes, and which of them are filled in at launch.

    Pointers and tensor maps stand at offsets: a map holds an address too.
    """

    data: bytes
    pointers: tuple[tuple[int, Pointer], ...]
    scalars: tuple[ScalarField, ...]
    maps: tuple[tuple[int, TensorMap], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch: ``headers`` and ``stub`` make the source, ``entry`` is in the stub.

    ``reason`` says why this configuration is legal and was chosen. ``scratch`` bytes of workspace
    beside the plan's are alive during the step. Where the two slots of ``unless_same`` are the
    same memory there is nothing to do. ``constants`` are those words of 8 bytes of the arguments
    that the kernel knows from the start: (number, value). ``architecture`` ("90a") is what it must
    be compiled for where that is not the device's own.
    """

    headers: tuple[str, ...]
    stub: str
    entry: str
    grid: Three
    block: Three
    arguments: Arguments
    reason: str
    shared: int = 0
    scratch: int = 0
    unless_same: tuple[int, int] | None = None
    constants: tuple[tuple[int, int], ...] = ()
    architecture: str | None = None

    @property
    def source(self) -> str:
        """The CUDA C++ of the kernel, complete: nothing is included from elsewhere."""
        known = " ".join(f"words[{at}] = {value}ull;" for at, value in self.constants)
        baked = (f"#define CONTRACT_BAKED(words) {known}",) if known else ()
        return "\n".join((*baked, *map(_header, self.headers), self.stub))

    @property
    def name(self) -> str:
        """The kernel."""
        return self.entry

    def __str__(self) -> str:
        grid, block = (",".join(map(str, three)) for three in (self.grid, self.block))
        memory = f"shared={self.shared} scratch={self.scratch}"
        return f"{self.entry} grid=({grid}) block=({block}) {memory}"


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """A column-major matrix of ``dtype`` for BLAS: where it begins, and strides in elements."""

    pointer: Pointer
    dtype: str
    leading: int
    transposed: bool = False
    batch_stride: int = 0


@dataclass(frozen=True, slots=True)
class BlasCall:
    """D = alpha op(A) op(B) + beta D for ``batch`` matrices, by cuBLAS.

    op(A) is m x k, op(B) is k x n. ``dtype`` is the type of alpha, beta and sums; ``compute`` is
    cuBLAS's name of how products are formed, never less accurate than the plan promises. Without
    a scalar alpha is 1 and beta is 0.
    """

    m: int
    n: int
    k: int
    a: MatrixLayout
    b: MatrixLayout
    d: MatrixLayout
    batch: int
    dtype: str
    compute: str
    alpha: Scalar | None = None
    beta: Scalar | None = None

    @property
    def name(self) -> str:
        """cuBLAS's routine."""
        return "cublasGemmEx" if self.batch == 1 else "cublasGemmStridedBatchedEx"

    def __str__(self) -> str:
        sizes = f"m={self.m} n={self.n} k={self.k} batch={self.batch}"
        return f"{self.name} {sizes} compute={self.compute}"


DeviceCall = KernelCall | BlasCall


def entry_stub(
    entry: str, bounds: str, *config: str, method: str = "run", qualifier: str = "const"
) -> str:
    """The C++ of a kernel's entry: the type of its configuration, in lines, and a call of it.

    ``bounds`` are the most threads of a block, and how many blocks registers must allow;
    ``qualifier`` is that of the arguments.
    """
    return "\n".join(
        (
            "using namespace contract;",
            "using Config =",
            *(f"    {line}" for line in config),
            f'extern "C" __global__ void __launch_bounds__({bounds}) '
            f"{entry}({qualifier} Config::Arguments a) {{",
            f"  Config::{method}(known(a));",
            "}",
            "",
        )
    )


@cache
def _header(name: str) -> str:
    return (resources.files("contract.device.kernels") / f"{name}.cuh").read_text()


class Fields:
    """Builds Arguments field by field, as C lays a struct out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._pointers: list[tuple[int, Pointer]] = []
        self._scalars: list[ScalarField] = []
        self._maps: list[tuple[int, TensorMap]] = []
        self._alignment = 1

    def pointer(self, pointer: Pointer | None) -> None:
        """An address; None is a null pointer."""
        at = self._align(8)
        if pointer is not None:
            self._pointers.append((at, pointer))
        self._data += bytes(8)

    def tensor_map(self, tensor_map: TensorMap) -> None:
        """A tensor map, encoded at launch."""
        self._maps.append((self._align(64), tensor_map))
        self._data += bytes(128)

    def scalar(self, scalar: Scalar | None, dtype: str) -> None:
        """A scalar of the execution; None is a constant 1."""
        at = self._align(_size(dtype))
        if scalar is None:
            self._data += packed(dtype, 1)
        else:
            self._scalars.append(ScalarField(at, scalar, dtype))
            self._data += bytes(_size(dtype))

    def value(self, dtype: str, value: complex) -> None:
        """A constant of a data type."""
        self._align(_size(dtype))
        self._data += packed(dtype, value)

    def unsigned(self, *values: int) -> None:
        """32-bit integers of 0 or more."""
        self._align(4)
        self._data += struct.pack(f"<{len(values)}I", *values)

    def integers(self, values: Iterable[int]) -> None:
        """64-bit integers."""
        numbers: Sequence[int] = tuple(values)
        self._align(8)
        self._data += struct.pack(f"<{len(numbers)}q", *numbers)

    def align(self, alignment: int) -> None:
        """Begin a struct inside the struct."""
        self._align(alignment)

    def arguments(self) -> Arguments:
        """The struct, padded to its alignment."""
        self._align(self._alignment)
        assert len(self._data) <= MOST_ARGUMENT_BYTES, len(self._data)
        filled = tuple(self._pointers), tuple(self._scalars), tuple(self._maps)
        return Arguments(bytes(self._data), *filled)

    def _align(self, alignment: int) -> int:
        self._alignment = max(self._alignment, alignment)
        self._data += bytes(-len(self._data) % alignment)
        return len(self._data)


_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "ff",
    "complex128": "dd",
}


def _size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else struct.calcsize("<" + _FORMATS[dtype])


def packed(dtype: str, value: complex) -> bytes:
    """The bytes of one element; the alignment of a type is its size.

    What is too large for a floating-point type is infinite, as in NumPy.
    """
    if dtype == "bfloat16":
        return _bfloat16(float(value.real))
    kind = _FORMATS[dtype]
    if len(kind) == 2:
        number = complex(value)
        return _real(kind[0], number.real) + _real(kind[1], number.imag)
    if kind == "?":
        return struct.pack("<?", bool(value))
    if kind in "efd":
        return _real(kind, float(value.real))
    return struct.pack("<" + kind, int(value.real))


def _real(kind: str, value: float) -> bytes:
    try:
        return struct.pack("<" + kind, value)
    except OverflowError:
        return struct.pack("<" + kind, copysign(inf, value))


def _bfloat16(value: float) -> bytes:
    """The upper half of a binary32, to nearest, ties to even."""
    (bits,) = struct.unpack("<I", _real("f", value))
    if value != value:
        return struct.pack("<H", 0x7FC0)
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
