"""Arrays in files: .npy and .npz read and written without pickle, output replaced atomically.

An array's address is ``A.npy``, ``data.npz`` (the only array of the archive) or
``data.npz:name``. What a file is, is told from its first bytes; what is written, from the suffix.
"""

import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from contract.errors import InvalidValueError
from contract.support.atomic_file import replacing

__all__ = ["ArrayFile", "check_writable", "read", "write"]

Array = NDArray[Any]

DEFAULT_MEMBER = "arr_0"  # the name numpy.savez gives an unnamed array
MAP_ABOVE = 16 << 20  # bytes; smaller files are read whole, so that they may change afterwards
NUMERIC_KINDS = frozenset("biufc")
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
RAW_BFLOAT16 = np.dtype("V2")  # what numpy.save makes of bfloat16
# What NumPy and zipfile raise on damaged bytes: NumPy reads a header as a literal of Python.
HEADER_DAMAGE = (SyntaxError, TokenError, TypeError, KeyError, AttributeError, MemoryError)
DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, OverflowError)


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """Where one array lies: a file, and for an archive the name of a member."""

    path: Path
    member: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ArrayFile":
        """``file`` or ``archive.npz:member``; a file that bears the whole name comes first."""
        head, separator, member = text.rpartition(".npz:")
        if not separator or Path(text).exists():
            return cls(Path(text))
        if not member:
            raise InvalidValueError(f"{text}: the name of an array is missing after the colon.")
        return cls(Path(head + ".npz"), member)

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"


@dataclass(frozen=True, slots=True)
class _Header:
    """What a .npy header says, and the bytes before the first element."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; exact, extents from a damaged file cannot overflow."""
        total = self.dtype.itemsize
        for extent in self.shape:
            total *= extent
        return total

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.column_major else "C"


def read(source: ArrayFile, bfloat16: bool = False) -> Array:
    """The array at ``source`` in native byte order; large .npy files are mapped, not read.

    With ``bfloat16`` raw 2-byte items are read as bfloat16. Refusals raise InvalidValueError,
    what the operating system refuses raises OSError.
    """
    with source.path.open("rb") as stream:
        magic = stream.read(len(np.lib.format.MAGIC_PREFIX))
    if magic == np.lib.format.MAGIC_PREFIX:
        return _read_npy(source, bfloat16)
    if magic.startswith(b"PK"):
        return _read_npz(source, bfloat16)
    what = "a pickle, which is never loaded" if magic.startswith(b"\x80") else "neither"
    raise InvalidValueError(f"{source}: expected a .npy or .npz file; this is {what}.")


def _read_npy(source: ArrayFile, bfloat16: bool) -> Array:
    if source.member is not None:
        raise InvalidValueError(f"{source}: this is a .npy file, it has no named arrays.")
    with source.path.open("rb") as stream, _damage_named(source):
        header = _header(source, stream)
        dtype = _element_type(source, header, bfloat16)
        _check_length(source, header, os.fstat(stream.fileno()).st_size)
        if header.nbytes > MAP_ABOVE:
            return _native(np.asarray(_mapped(source.path, header).view(dtype)))
        return _native(_elements(stream, header).view(dtype))


def _read_npz(source: ArrayFile, bfloat16: bool) -> Array:
    with _damage_named(source), zipfile.ZipFile(source.path) as archive:
        info = archive.getinfo(_choose(source, archive) + ".npy")
        with archive.open(info) as stream:
            header = _header(source, stream)
            dtype = _element_type(source, header, bfloat16)
            _check_length(source, header, info.file_size)
            return _native(_elements(stream, header).view(dtype))


def _choose(source: ArrayFile, archive: zipfile.ZipFile) -> str:
    """The member that is meant; the archive's only array when none is named."""
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    listed = ", ".join(sorted(names)) or "none"
    if source.member is None and len(names) != 1:
        raise InvalidValueError(
            f"{source}: {len(names)} arrays, say which as {source}:NAME; it has {listed}."
        )
    if source.member is not None and source.member not in names:
        raise InvalidValueError(
            f"{source.path}: no array is called {source.member!r}; it has {listed}."
        )
    return names[0] if source.member is None else source.member


def _header(source: ArrayFile, stream: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(stream)
    readers: dict[tuple[int, int], Callable[[IO[bytes]], tuple[Any, ...]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # 3.0 differs by field names beyond latin1 only
        raise InvalidValueError(f"{source}: the .npy format {version} has no plain numbers.")
    try:
        shape, column_major, dtype = readers[version](stream)
    except HEADER_DAMAGE as error:
        raise ValueError(f"its header is not one of .npy: {error}") from error
    return _Header(shape, column_major, dtype, stream.tell())


def _element_type(source: ArrayFile, header: _Header, bfloat16: bool) -> np.dtype[Any]:
    """The type to compute with; refuses what is not a number."""
    dtype: np.dtype[Any] = header.dtype
    if dtype == RAW_BFLOAT16:
        if bfloat16:
            return BFLOAT16
        raise InvalidValueError(
            f"{source}: raw 2-byte items (dtype V2), as NumPy writes bfloat16, for which .npy "
            "has no name; --bfloat16 reads them as bfloat16."
        )
    if dtype.hasobject:
        raise InvalidValueError(f"{source}: Python objects need pickle, which is never loaded.")
    if dtype.kind not in NUMERIC_KINDS:
        raise InvalidValueError(f"{source}: dtype {dtype} is not a type of numbers.")
    return dtype


def _check_length(source: ArrayFile, header: _Header, length: int) -> None:
    """Refuse a truncated file before any memory is allocated for it."""
    if min(header.shape, default=0) < 0:
        raise InvalidValueError(f"{source}: the file is damaged: its shape is {header.shape}.")
    if header.offset + header.nbytes > length:
        raise InvalidValueError(
            f"{source}: the file is truncated: shape {header.shape} of {header.dtype} needs "
            f"{header.offset + header.nbytes} bytes, it has {length}."
        )


def _mapped(path: Path, header: _Header) -> Array:
    return np.memmap(path, header.dtype, "r", header.offset, header.shape, header.order)


def _elements(stream: IO[bytes], header: _Header) -> Array:
    data = bytearray(header.nbytes)
    with memoryview(data) as view:
        _fill(stream, view)
    return np.ndarray(header.shape, header.dtype, buffer=data, order=header.order)


def _fill(stream: IO[bytes], view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = stream.read(min(len(view) - done, 1 << 24))
        if not got:
            raise EOFError("the data ends early")
        view[done : done + len(got)] = got
        done += len(got)


def _native(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), order="K", copy=False)


@contextmanager
def _damage_named(source: ArrayFile) -> Iterator[None]:
    """Turn what NumPy and zipfile raise on damaged bytes into a refusal that names the file."""
    try:
        yield
    except InvalidValueError:
        raise
    except DAMAGE as error:
        raise InvalidValueError(f"{source}: the file is damaged: {error}") from error


def check_writable(target: ArrayFile) -> None:
    """Refuse, before anything is computed, an output that ``write`` could not write."""
    path = target.path
    if path.suffix not in (".npy", ".npz"):
        raise InvalidValueError(f"{path}: an output is called .npy or .npz.")
    if path.exists() and not path.is_file():
        raise InvalidValueError(f"{path}: this is not a regular file.")
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidValueError(f"{path}: the file is write-protected.")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise InvalidValueError(f"{path}: the folder {folder} does not exist.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidValueError(f"{path}: the folder {folder} may not be written to.")
    if target.member is not None and path.exists():  # the others are kept: is it readable?
        with _damage_named(target), zipfile.ZipFile(path):
            pass


def write(target: ArrayFile, array: Array) -> None:
    """Write ``array`` to ``target``: the old file stays until the new one is complete.

    A named array joins the others of an existing archive; without a name a .npz is replaced.
    bfloat16 is written as raw 2-byte items, as numpy.save does.
    """
    with replacing(target.path) as stream:
        if target.path.suffix == ".npy":
            np.lib.format.write_array(stream, array, allow_pickle=False)
        else:
            _write_npz(target, stream, array)


def _write_npz(target: ArrayFile, stream: IO[bytes], array: Array) -> None:
    name = (target.member or DEFAULT_MEMBER) + ".npy"
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        if target.member is not None and target.path.exists():
            with _damage_named(target):
                _copy_members(target.path, archive, without=name)
        with _member(archive, name) as member:
            np.lib.format.write_array(member, array, allow_pickle=False)


def _copy_members(path: Path, archive: zipfile.ZipFile, without: str) -> None:
    with zipfile.ZipFile(path) as old:
        for info in old.infolist():
            if info.filename != without:
                with old.open(info) as source, _member(archive, copy(info)) as kept:
                    shutil.copyfileobj(source, kept, 1 << 20)


def _member(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo) -> IO[bytes]:
    return archive.open(name, "w", force_zip64=True)
