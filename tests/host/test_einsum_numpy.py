"""einsum against numpy.einsum: what it accepts, gives, refuses, and with which exception."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct

A, B, C = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
SQUARE = np.arange(9.0).reshape(3, 3)
CUBE = np.arange(60.0).reshape(3, 4, 5)
V = np.arange(3.0)

EXPRESSIONS: list[tuple[Any, ...]] = [
    ("ij,jk", A, B),
    ("ij,jk->ki", A, B),
    ("ij,jk,kl->il", A, B, C),
    ("ij,jk,kl", A, B, C),
    ("ii", SQUARE),
    ("ii->i", SQUARE),
    ("ij->ji", A),
    ("ji", A),
    ("ij->", A),
    ("ij->j", A),
    ("i,i", V, V),
    ("i,j", V, V),
    ("i,i->i", V, V),
    ("i,->i", V, 3.0),
    (",", 2, 3.5),
    ("->", 4),
    ("", np.float32(2)),
    ("...", CUBE),
    ("...ij->...ji", CUBE),
    ("i...->...", CUBE),
    ("i...,i...->...", CUBE, CUBE),
    ("...j,jk", A, B),
    ("i...j,jk", CUBE, np.ones((5, 2))),
    ("...,...", CUBE, np.arange(5.0)),
    ("ij...,jk...->ik...", A, B),
    ("a...b->b...a", CUBE),
    (" i j , j k -> i k ", A, B),
    ("ba,ac,cb->", np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 2))),
    ("ijk,ijk,ijk->k", CUBE, CUBE, CUBE),
    ("ij,ij", SQUARE, SQUARE.T),
    ("ij,jk", np.ones((3, 1)), np.ones((4, 5))),
    ("i,i->i", np.ones(1), V),
    ("ij,ji->", np.ones((1, 3)), np.ones((3, 4))),
    ("ij,jk", np.ones((0, 3)), np.ones((3, 2))),
    ("ij,jk", np.ones((2, 0)), np.ones((0, 2))),
    ("i->", np.ones(0)),
    ("Ab,bA->bA", A, A.T),
    ("bA", A),
    ("ij,jk->ik", [[1, 2], [3, 4]], ((1, 2), (3, 4))),
    ("ij,jk->ik", np.ma.array(SQUARE), SQUARE),
    ("...->...", np.arange(4)),
    ("i...->i...", np.arange(4)),
    ("...a,...b->...ab", CUBE, CUBE),
    ("...ii->...i", np.ones((2, 3, 3))),
    (A, [0, 1], B, [1, 2]),
    (A, [0, 1], B, [1, 2], [2, 0]),
    (A, [0, 1]),
    (A, [1, 0]),
    (CUBE, [0, Ellipsis], V, [0], [Ellipsis]),
    (CUBE, [Ellipsis, 2], [Ellipsis, 2]),
    (A, (5, 3), B, (3, 9), (9, 5)),
    (A, np.array([0, 1]), B, np.array([1, 2])),
    (3.0, []),
]


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def assert_same(arguments: tuple[Any, ...], **options: Any) -> None:
    """Both give the same value, type and shape, or both refuse with the same class."""
    mine, theirs = (
        outcome(ct.einsum, *arguments, **options),
        outcome(np.einsum, *arguments, **options),
    )
    if isinstance(theirs, Exception):
        kinds = (ValueError, TypeError, KeyError, IndexError)
        expected = next(kind for kind in kinds if isinstance(theirs, kind))
        assert isinstance(mine, expected), f"NumPy: {theirs!r}, here: {mine!r}"
        return
    assert not isinstance(mine, Exception), f"NumPy accepts, here: {mine!r}"
    assert type(mine) is type(theirs)
    assert np.shape(mine) == np.shape(theirs)
    if isinstance(theirs, np.ndarray | np.generic):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(mine, np.clongdouble), np.asarray(theirs, np.clongdouble), rtol=1e-5
        )
    else:
        assert mine == theirs


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("case", range(len(EXPRESSIONS)))
def test_accepted_expressions(case: int, optimize: bool) -> None:
    arguments = EXPRESSIONS[case]
    if optimize:
        wanted = np.einsum(*arguments)
        np.testing.assert_allclose(ct.einsum(*arguments, optimize=True), wanted)
    else:
        assert_same(arguments)


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("ij",), {}),
    (("ij", A, B), {}),
    (("ij,jk", A), {}),
    (("i", A), {}),
    (("ijk", A), {}),
    (("ij,jk", A, A), {}),
    (("ii", A), {}),
    (("ij->k", A), {}),
    (("ij->ii", A), {}),
    (("ij->iji", A), {}),
    (("i..j", A), {}),
    (("......", A), {}),
    (("...i...", A), {}),
    (("i...->i", CUBE), {}),
    (("ij->i->j", A), {}),
    (("ij-", A), {}),
    (("ij>", A), {}),
    (("i1", A), {}),
    (("i_", A), {}),
    (("ij,", A), {}),
    (("ii->i", np.ones((1, 3))), {}),
    (("ij", 3.0), {}),
    ((A, [0]), {}),
    ((A, [0, 1, 2]), {}),
    ((A, ["a", "b"]), {}),
    ((A, [0, -1]), {}),
    ((A, [0, 1], [2]), {}),
    ((A, [0, 1], [0, 0]), {}),
    ((A, 3), {}),
    ((A,), {}),
    ((3.0, "i"), {}),
    (("ij,jk", A, B), {"out": [1]}),
    (("ij,jk", A, B), {"out": np.empty(3)}),
    (("ij,jk", A, B), {"out": np.empty((2, 5))}),
    (("ij,jk", A, B), {"out": np.empty((2, 4), "f4")}),
    (("ij,jk", A, B), {"out": np.empty((2, 4), int)}),
    (("ij,jk", A, B), {"out": np.empty((2, 4), int), "casting": "same_kind"}),
    (("ij,jk", A, B), {"dtype": "f4"}),
    (("ij,jk", A, B), {"dtype": "nonsense"}),
    (("ij,jk", A, B), {"order": "X"}),
    (("ij,jk", A, B), {"order": 1}),
    (("ij,jk", A, B), {"casting": "nonsense"}),
    (("ij,jk", A, B), {"casting": 3}),
    (("ij,jk", A, B), {"nonsense": 3}),
    (("ij,jk", A, B), {"optimize": [(0, 1)]}),
    (("ij,jk,kl", A, B, C), {"optimize": "nonsense"}),
    (("ij,jk,kl", A, B, C), {"optimize": 3}),
    (("i->", np.array(["x"])), {}),
    (("i->", np.array(["2020-01-01"], "M8[D]")), {}),
    (("i->", np.array([1], "m8[s]")), {}),
    (("i,i", V, np.array(["x", "y", "z"])), {}),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused_calls(case: int) -> None:
    arguments, options = REFUSED[case]
    assert isinstance(outcome(np.einsum, *arguments, **options), Exception)
    assert_same(arguments, **options)


TYPES = ("?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", "F", "D", "G", "O")


@pytest.mark.parametrize("second", TYPES)
@pytest.mark.parametrize("first", TYPES)
def test_types(first: str, second: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 3, (3, 3)).astype(kind) for kind in (first, second))
    for text in ("ij,jk", "ij,ij->i", "i...,j...->ij"):
        assert_same((text, a, b))
    assert_same(("ij->j", a))
    assert_same(("ij,jk->ik", a, b), dtype="D", casting="unsafe")


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("dtype", [None, "f4", "f8", "i4", "c16"])
@pytest.mark.parametrize("out", [None, "f4", "f8", "c16", "i8", ">f8"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_casting_and_out(out: str | None, dtype: str | None, casting: str) -> None:
    for given in ("f4", "f8", "i4"):
        a, b = A.astype(given), B.astype(given)
        mine, theirs = (None if out is None else np.zeros((2, 4), out) for _ in range(2))
        results = [
            outcome(f, "ij,jk->ik", a, b, out=target, dtype=dtype, casting=casting)
            for f, target in ((ct.einsum, mine), (np.einsum, theirs))
        ]
        if isinstance(results[1], Exception):
            assert isinstance(results[0], TypeError), results
            assert mine is None or not mine.any(), "out is untouched by a refused call"
            continue
        assert not isinstance(results[0], Exception), results
        assert results[0].dtype == results[1].dtype
        np.testing.assert_allclose(results[0], results[1])
        assert mine is None or results[0] is mine


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "c", "f", "a", "k", None])
def test_order(order: str) -> None:
    for text, *operands in (("ij,jk", A, B), ("ijk,kl->lij", CUBE, C.T), ("ijk->k", CUBE)):
        mine, theirs = (f(text, *operands, order=order) for f in (ct.einsum, np.einsum))
        assert mine.strides == theirs.strides


@pytest.mark.parametrize(
    "optimize",
    [True, False, None, "greedy", "optimal", ("greedy", 100), ["einsum_path", (0, 1), (0, 1)],
     ["einsum_path", (1, 2), (0, 1)], ["einsum_path", (0, 1, 2)]],
)  # fmt: skip
def test_optimize(optimize: Any) -> None:
    found = ct.einsum("ij,jk,kl->il", A, B, C, optimize=optimize)
    np.testing.assert_allclose(found, A @ B @ C)


def test_views_where_numpy_gives_views() -> None:
    for text, x in (("ij->ji", A), ("ii->i", SQUARE), ("...ij->...ji", CUBE), ("ij", A)):
        mine, theirs = ct.einsum(text, x), np.einsum(text, x)
        assert np.shares_memory(mine, x)
        assert np.shares_memory(theirs, x)
        assert mine.strides == theirs.strides
        assert mine.base is theirs.base
        assert mine.flags.writeable
    frozen = A.copy()
    frozen.flags.writeable = False
    assert not ct.einsum("ij->ji", frozen).flags.writeable
    assert not np.shares_memory(ct.einsum("ij->i", A), A)


def test_a_diagonal_is_written_through_its_view() -> None:
    x = np.ones((3, 3))
    ct.einsum("ii->i", x)[:] = 0
    np.testing.assert_array_equal(x, 1 - np.eye(3))


def test_out_is_returned_and_may_overlap_an_input() -> None:
    x = np.arange(16.0).reshape(4, 4)
    wanted = x @ x
    out = x.copy()
    assert ct.einsum("ij,jk->ik", out, out, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    shifted = np.arange(20.0)
    a, b = shifted[:16].reshape(4, 4), shifted[2:18].reshape(4, 4)
    wanted = a.T.copy()
    ct.einsum("ij->ji", a, out=b)
    np.testing.assert_array_equal(b, wanted)


def _drawn(rng: np.random.Generator, count: int) -> tuple[str, list[np.ndarray]]:
    """An expression for ``count`` operands that lie in memory in any way."""
    extents = dict(zip("abCdEf", rng.integers(1, 4, 6), strict=True))
    terms = ["".join(rng.choice(list(extents), rng.integers(0, 5))) for _ in range(count)]
    operands = []
    for term in terms:
        shape = [1 if term.count(x) == 1 and rng.random() < 0.1 else extents[x] for x in term]
        axes = rng.permutation(len(shape))
        x = np.ones(np.array(shape, int)[axes]).transpose(np.argsort(axes))
        operands.append(x[(slice(None, None, -1),) * int(rng.integers(0, len(shape) + 1))])
    labels = sorted(set("".join(terms)))
    output = rng.permutation(labels)[: rng.integers(0, len(labels) + 1)]
    return f"{','.join(terms)}->{''.join(output)}", operands


def _steps(x: np.ndarray) -> list[int]:
    return [step for step, extent in zip(x.strides, x.shape, strict=True) if extent > 1]


by_matrices = pytest.mark.skipif(
    not hasattr(np._core.einsumfunc, "bmm_einsum"), reason="NumPy before 2.4 multiplies otherwise"
)


@pytest.mark.parametrize(
    ("optimize", "most"),
    [
        (False, 4),
        pytest.param(True, 2, marks=by_matrices),
        pytest.param(None, 2, marks=by_matrices),
    ],
)
def test_results_lie_as_numpy_lays_them(
    optimize: bool | None, most: int, rng: np.random.Generator
) -> None:
    """Longer paths may differ from NumPy's, and with them the layout of what they give."""
    for _ in range(300):
        text, operands = _drawn(rng, int(rng.integers(1, most + 1)))
        mine = ct.einsum(text, *operands, optimize=optimize)
        theirs = np.einsum(text, *operands, optimize=optimize)
        assert _steps(mine) == _steps(theirs), (text, [(x.shape, x.strides) for x in operands])
        np.testing.assert_array_equal(mine, theirs)
        again = ct.einsum(text, *operands, optimize=optimize)
        assert _steps(again) == _steps(theirs)


def test_views_of_more_labels_than_numpy_has() -> None:
    x = np.arange(2.0).reshape((1,) * 60 + (2,))
    modes = list(range(61))
    found = ct.einsum(x, modes, modes[::-1])
    assert np.shares_memory(found, x)
    assert found.strides == x.T.strides
    assert found.shape == x.T.shape


@by_matrices
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("casting", [None, "no", "safe", "same_kind", "unsafe"])
def test_out_with_optimize(casting: str | None, rng: np.random.Generator) -> None:
    """Where NumPy's matrix product is no place for ``out``, it is assigned, whatever the type."""
    refused = 0
    for _ in range(150):
        text, operands = _drawn(rng, 2)
        shape = np.shape(np.einsum(text, *operands))
        out = rng.choice(["f4", "f8", "c16", "i8", "?", ">f8"])
        options: dict[str, Any] = {"optimize": True}
        if casting is not None:
            options["casting"] = casting
        mine, theirs = np.zeros(shape, out), np.zeros(shape, out)
        found = outcome(ct.einsum, text, *operands, out=mine, **options)
        wanted = outcome(np.einsum, text, *operands, out=theirs, **options)
        if isinstance(wanted, Exception):
            refused += 1
            assert isinstance(found, TypeError), (text, out, found, wanted)
        else:
            assert found is mine, (text, out, found)
            np.testing.assert_array_equal(mine, theirs)
    assert refused or casting == "unsafe"


def test_out_of_rank_0_takes_any_type() -> None:
    mine = np.array(0)
    assert ct.einsum("i,i->", V, V, out=mine, optimize="optimal") is mine
    assert mine == 5
    with pytest.raises(TypeError):
        ct.einsum("i,i->", V, V, out=mine)


@pytest.mark.parametrize("optimize", [True, False])
def test_the_type_that_is_asked_for(optimize: bool) -> None:
    """Operands are cast by the rule same_kind with ``optimize``, without it they are not."""
    mine, theirs = (
        outcome(f, "ij,jk", A, B, dtype="f4", optimize=optimize) for f in (ct.einsum, np.einsum)
    )
    assert isinstance(theirs, TypeError) is not optimize
    assert isinstance(mine, TypeError) is not optimize
    assert optimize is False or mine.dtype == theirs.dtype == np.float32


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ([(0, 1)], RuntimeError),
        ([(1,), (0, 1)], RuntimeError),
        ([], RuntimeError),
        ([(0, 5), (0, 1)], IndexError),
    ],
)
def test_paths_that_do_not_fit(path: list[tuple[int, ...]], error: type[Exception]) -> None:
    for einsum in (ct.einsum, np.einsum, ct.einsum_path, np.einsum_path):
        with pytest.raises(error):
            einsum("ij,jk,kl", A, B, C, optimize=["einsum_path", *path])


class Elsewhere:
    """An array of a library that has functions of its own in the place of NumPy's."""

    shape = (3,)

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        return function, given, options


def test_operands_with_functions_of_their_own() -> None:
    x = Elsewhere()
    assert ct.einsum("i,i", V, x, order="F") == (np.einsum, ("i,i", V, x), {"order": "F"})
    assert ct.einsum("i->", V, out=x) == (np.einsum, ("i->", V), {"out": x})
    assert ct.einsum(x, [0], optimize=True) == (np.einsum, (x, [0]), {"optimize": True})
    assert ct.tensordot(V, x, 1) == (np.tensordot, (V, x, 1), {})


def test_out_broadcasts_as_numpy_does() -> None:
    mine, theirs = np.zeros(3), np.zeros(3)
    ct.einsum("i,i->i", np.ones(1), np.ones(1), out=mine)
    np.einsum("i,i->i", np.ones(1), np.ones(1), out=theirs)
    np.testing.assert_array_equal(mine, theirs)


def test_path_can_be_given_back() -> None:
    path, text = ct.einsum_path("ij,jk,kl->il", A, B, C, optimize="greedy")
    assert path[0] == "einsum_path"
    assert "FLOP" in text
    np.testing.assert_allclose(ct.einsum("ij,jk,kl->il", A, B, C, optimize=path), A @ B @ C)
    assert ct.einsum_path("ij,jk,kl->il", A, B, C, optimize=False)[0] == ["einsum_path", (0, 1, 2)]


def _spelled(rng: np.random.Generator, alphabet: str) -> tuple[str, list[np.ndarray]]:
    """A random text of labels, and operands whose ranks mostly fit."""
    text = "".join(rng.choice(list(alphabet), rng.integers(0, 9)))
    text = text.replace("~", "...").replace("#", "->")
    operands = []
    for term in text.split("->")[0].split(","):
        rank = sum(each.isalpha() for each in term) + ("..." in term) * int(rng.integers(0, 3))
        operands.append(np.ones([2] * rank))
    return text, operands


def test_fuzzed_texts_are_accepted_as_numpy_accepts_them(rng: np.random.Generator) -> None:
    accepted = 0
    for _ in range(6000):
        text, operands = _spelled(rng, "aabbA.~~,,##-> ")
        mine, theirs = outcome(ct.einsum, text, *operands), outcome(np.einsum, text, *operands)
        if isinstance(theirs, Exception):
            assert isinstance(mine, ValueError), (text, theirs, mine)
        else:
            accepted += 1
            np.testing.assert_array_equal(mine, theirs, err_msg=text)
    assert accepted > 1000


def _memory(x: np.ndarray, kind: int) -> np.ndarray:
    """The same values in memory that NumPy reads and few libraries like."""
    match kind:
        case 0:
            return x[tuple(slice(None, None, -1) for _ in x.shape)]
        case 1:
            raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
            view = raw.view(x.dtype).reshape(x.shape)  # not aligned
            view[...] = x
            return view
        case 2:
            record = np.zeros(x.shape, np.dtype([("pad", "u1"), ("x", x.dtype)]))
            record["x"] = x  # strides are no multiple of the item size
            return record["x"]
        case 3:
            return x.astype(x.dtype.newbyteorder(">"))
        case 4:
            return np.broadcast_to(x[:1], x.shape)
        case 5:
            return np.lib.stride_tricks.sliding_window_view(
                np.arange(sum(x.shape)) * 1.0, x.shape[0]
            )[: x.shape[1]].T
        case _:
            return np.asfortranarray(x)


@pytest.mark.parametrize("size", [3, 70])
@pytest.mark.parametrize("kind", range(7))
def test_any_memory(kind: int, size: int, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((size, size)), rng.standard_normal((size, size))
    for a in (_memory(x, kind), _memory(x, kind).T):
        for text in ("ij,jk", "ij,ik->jk", "ij,ij->", "ij,ij->ij", "ji->ij", "ij->i", "ii,ij->j"):
            operands = (a, y) if "," in text else (a,)
            mine, theirs = ct.einsum(text, *operands), np.einsum(text, *operands)
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(
                ct.contract(text if "->" in text else text + "->ik", *operands), theirs,
                rtol=1e-10, atol=1e-10,
            )  # fmt: skip


def test_beyond_numpy_labels_are_unlimited() -> None:
    np.testing.assert_allclose(ct.einsum("éß,ßü->éü", A, B), A @ B)
    np.testing.assert_allclose(ct.einsum(A, [1000, 7], B, [7, 52]), B.T @ A.T)


def test_the_type_of_sums_is_part_of_the_key() -> None:
    x = np.arange(77.0).reshape(7, 11)
    for dtype in (None, "f4", None, "c16", "f4"):
        options = {} if dtype is None else {"dtype": dtype, "casting": "same_kind"}
        found = ct.einsum("ij,kj->ik", x, x, **options)
        assert found.dtype == np.dtype(dtype or "f8")
        np.testing.assert_allclose(found, x @ x.T)


def test_types_that_numpy_has_no_common_one_for() -> None:
    """contract gives the two 16-bit types float32; what has none is refused by our class."""
    x = np.arange(6).reshape(2, 3)
    half, brain = x.astype("float16"), x.astype("bfloat16")
    found = ct.einsum("ij,ij", half, brain)
    assert (found, found.dtype) == (55, np.float32)
    with pytest.raises(ct.UnsupportedTypeError, match="no common type"):
        ct.einsum("ij,ij", brain, x)


def test_out_of_the_common_type() -> None:
    """NumPy has a type for these, and none for them and one more of that type."""
    kinds = "bfloat16", "complex64", "uint16", "complex128"
    out = np.zeros((), "complex128")
    assert ct.einsum(",,,->", *(np.ones((), kind) for kind in kinds), out=out) == 1
