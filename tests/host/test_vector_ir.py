"""What compiled kernels are written with: tables read by names, and vectors."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba")

from contract.host.compiled.functions.tables import behind, load, table
from contract.host.compiled.functions.tools import by_integers, made
from contract.host.compiled.functions.vector_ir import Tag, Word, Writer, emitted


class Numbers(NamedTuple):
    left: int
    right: int
    result: int


@emitted
def transpose(write: Writer, kind: Tag, source: Word, target: Word) -> None:
    rows = write.vectors(kind, 4)
    places = [write.plus(source, at * rows.bytes) for at in range(4)]
    for at, row in enumerate(rows.transposed([rows.load(place) for place in places])):
        rows.store(row, write.plus(target, at * rows.bytes))


@emitted
def store_some(
    write: Writer, kind: Tag, source: Word, target: Word, begin: Word, end: Word
) -> None:
    row = write.vectors(kind, 4)
    row.store_masked(row.load(source), target, row.mask(range(4), begin, end))


@emitted
def convert(write: Writer, one: Tag, two: Tag, source: Word, target: Word) -> None:
    given, wanted = write.vectors(one, 4), write.vectors(two, 4)
    wanted.store(wanted.converted(given, given.load(source)), target)


def called(function: Any, *given: int) -> None:
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(given))
    kind(made(by_integers(function, len(given))))(*given)


def test_entries_of_a_table_have_names() -> None:
    def run(given: int) -> None:
        numbers = table(Numbers, given)
        numbers.result = numbers.left - numbers.right + load(behind(Numbers, given, 1), 0)

    entries = np.array([*Numbers(left=7, right=40, result=0), 100])
    called(run, entries.ctypes.data)
    assert Numbers(*entries[:3].tolist()) == Numbers(7, 40, 67)


@pytest.mark.parametrize("dtype", ["float32", "complex128", "uint16"])
def test_a_square_is_transposed(dtype: str) -> None:
    kind = np.dtype(dtype).type(0)

    def run(source: int, target: int) -> None:
        transpose(kind, source, target)

    square = np.arange(16).reshape(4, 4).astype(dtype)
    target = np.zeros_like(square)
    called(run, square.ctypes.data, target.ctypes.data)
    np.testing.assert_array_equal(target, square.T)


def test_a_mask_keeps_what_is_there() -> None:
    kind = np.float64(0)

    def run(source: int, target: int, begin: int, end: int) -> None:
        store_some(kind, source, target, begin, end)

    source, target = np.arange(4.0), np.full(4, 9.0)
    called(run, source.ctypes.data, target.ctypes.data, 1, 3)
    np.testing.assert_array_equal(target, [9, 1, 2, 9])


@pytest.mark.parametrize(
    ("one", "two"),
    [("int8", "int64"), ("uint8", "float32"), ("float32", "complex128"), ("complex64",) * 2],
)
def test_elements_are_converted(one: str, two: str) -> None:
    kinds = np.dtype(one).type(0), np.dtype(two).type(0)
    first, second = kinds

    def run(source: int, target: int) -> None:
        convert(first, second, source, target)

    source = np.array([1, 200, 3, 255]).astype(one)
    target = np.zeros(4, two)
    called(run, source.ctypes.data, target.ctypes.data)
    np.testing.assert_array_equal(target, source.astype(two))
