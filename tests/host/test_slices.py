"""Calls that need more memory than they may have: computed in slices, or refused."""

import pickle
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.execution import bound_plan as call
from tests.reference import assert_within_bound

# (ia|jb) first, as large as everything: in whole 20.5 MB here, 205 GB for 40000 virtual orbitals.
EXCHANGE, PATH = "xia,xjb,yib,yja->", ((0, 1), (0, 2), (0, 1))


def tensors(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal((8, 4, 400)) for _ in range(4)]


def exchange(x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray) -> float:
    """The same by matrices, one pair (i, j) after the other."""
    pairs = [(i, j) for i in range(4) for j in range(4)]
    return sum(np.sum((x[:, i] @ w[:, j].T) * (y[:, j] @ z[:, i].T)) for i, j in pairs)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_a_hundredth_of_the_memory(rng: np.random.Generator) -> None:
    """Allocations stay within the limit; every number is in what is printed."""
    arrays = tensors(rng)
    expression = ct.contract_expression(
        EXCHANGE, *(x.shape for x in arrays), optimize=PATH, memory_limit="205kB"
    )
    arrays = [np.asfortranarray(x) for x in arrays]
    expression(*arrays)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    found = expression(*arrays)
    after, peak = tracemalloc.get_traced_memory()
    assert peak - max(before, after) <= 205_000 + 20_000  # Python's own objects
    assert after - before <= 100_000  # its free lists
    np.testing.assert_allclose(found, exchange(*arrays), rtol=1e-10)
    for text in (str(expression), expression.explain()):
        assert text.startswith("sliced: ")
        assert "1x the FLOPs" in text
        assert "of intermediates instead of 20.6 MB" in text
    assert expression.plan.workspace >= 8 * 1600 * 1600


def test_a_circuit(rng: np.random.Generator) -> None:
    """An amplitude of 12 qubits after 8 layers of gates on neighbours, in slices and not."""
    qubits = 12
    wires = list(range(qubits))
    arguments: list[Any] = [part for wire in wires for part in (np.array([1, 0j]), [wire])]
    labels = qubits
    for layer in range(8):
        for left in range(layer % 2, qubits - 1, 2):
            gate = np.linalg.qr(rng.standard_normal((4, 8)).view(complex))[0].reshape(2, 2, 2, 2)
            inward = wires[left : left + 2]
            wires[left : left + 2] = labels, labels + 1
            arguments += [gate, [labels, labels + 1, *inward]]
            labels += 2
    arguments += [part for wire in wires for part in (np.array([1, 1j]) / np.sqrt(2), [wire])]
    whole = ct.contract(*arguments, [], optimize="greedy")
    shapes = [x if at % 2 else x.shape for at, x in enumerate(arguments)]
    options = {"optimize": "greedy", "dtype": complex, "memory_limit": 3500}
    sliced = ct.contract_expression(*shapes, [], **options)
    assert "instead of 5.12 kB" in str(sliced)
    np.testing.assert_allclose(sliced(*arguments[::2]), whole, rtol=1e-10)


@pytest.mark.parametrize("left", [1600, 2000, 3000])
def test_a_limit_near_what_there_is(left: int, rng: np.random.Generator) -> None:
    """The result takes 22400 bytes; one choice of slices needs all the rest and a line more."""
    a, b, c = rng.random((40, 50)), rng.random((50, 60)), rng.random((60, 70))
    found = ct.contract("ij,jk,kl->il", a, b, c, memory_limit=22400 + left)
    np.testing.assert_allclose(found, a @ b @ c)


def test_what_no_slices_fit_is_refused(rng: np.random.Generator) -> None:
    out = np.array(7.0)
    with pytest.raises(
        ct.InsufficientWorkspaceError,
        match=r"needs 20582400 bytes .*, 16 bytes in the smallest slices .*limit is 7 bytes",
    ):
        ct.contract(EXCHANGE, *tensors(rng), optimize=PATH, memory_limit=7, out=out)
    assert out == 7


def free(monkeypatch: pytest.MonkeyPatch, handle: ct.Handle, size: int) -> None:
    """Pretend that so many bytes are free, and that every call looks."""
    monkeypatch.setattr(call, "LARGE_BYTES", 0)
    monkeypatch.setattr(type(handle.arrays), "available_bytes", lambda self: size)


def test_slices_for_the_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    arrays = tensors(rng)
    with ct.Handle() as handle:
        given = {"optimize": PATH, "handle": handle}
        expression = ct.contract_expression(EXCHANGE, *(x.shape for x in arrays), **given)
        ct.contract(EXCHANGE, *arrays, **given)
        free(monkeypatch, handle, 1_000_000)
        tracemalloc.start()
        found = ct.contract(EXCHANGE, *arrays, **given), expression(*arrays)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000
        np.testing.assert_allclose(found, exchange(*arrays), rtol=1e-10)
        free(monkeypatch, handle, 7)
        with pytest.raises(
            ct.InsufficientWorkspaceError, match=r"in slices; 7 bytes are free"
        ) as raised:
            ct.contract(EXCHANGE, *arrays, **given)
        sent = pickle.loads(pickle.dumps(raised.value))  # as workers send it
        assert (str(sent), sent.free) == (str(raised.value), 7)


def test_what_is_captured_has_slices_for_the_memory_there_was(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """A replay that lacks memory says so, and plans nothing."""
    arrays = tensors(rng)
    with ct.Handle() as handle:
        shapes = [x.shape for x in arrays]
        expression = ct.contract_expression(EXCHANGE, *shapes, optimize=PATH, handle=handle)
        free(monkeypatch, handle, 1_000_000)
        with expression.capture(*arrays) as captured:
            np.testing.assert_allclose(captured.replay(), exchange(*arrays), rtol=1e-10)
            planned = handle.plans.statistics.misses
            free(monkeypatch, handle, 7)
            with pytest.raises(ct.InsufficientWorkspaceError, match="workspace; 7 bytes are free"):
                captured.replay()
            assert handle.plans.statistics.misses == planned


def test_a_share_of_the_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    arrays = [x.shape for x in tensors(rng)]
    with ct.Handle() as handle:
        free(monkeypatch, handle, 41_000_000)
        for limit, sliced in (("0.5%", True), (205_000, True), ("60%", False)):
            expression = ct.contract_expression(
                EXCHANGE, *arrays, optimize=PATH, memory_limit=limit, handle=handle
            )
            assert str(expression).startswith("sliced: ") is sliced


def test_slices_of_an_expression(rng: np.random.Generator) -> None:
    a, b, c = rng.random((6, 7)), rng.random((7, 8)), rng.random((8, 5))
    expression = ct.contract_expression("ij,jk,kl->il", a, (7, 8), c, slices={"j": 3, "i": 2})
    assert "i into 2 x 3, j into 3 x 3 (last 1): 6 slices" in str(expression)
    for addend, beta in ((None, None), (np.ones((6, 5)), 2)):
        found = expression(b, c=addend, beta=beta, alpha=3)
        assert_within_bound(found, ("ij", "jk", "kl"), "il", (a, b, c), 3, beta or 0, addend)


def test_slices_are_as_accurate_as_the_whole(rng: np.random.Generator) -> None:
    """A dot of ones in float16 is not rounded before the end."""
    ones = np.ones(70000, np.float16)
    assert ct.contract("i,i->", ones, ones, slices={"i": 7}, alpha=0.5) == 35000
    assert ct.contract("i,i->", ones, ones, slices={"i": 100}, alpha=0.01) == np.float16(700)
    out = np.empty((), np.float32)
    big = np.full(1000, 1e30)
    ct.contract("i,i->", big, big, out=out, slices={"i": 10}, alpha=1e-50)
    assert out == np.float32(1e13)


@pytest.mark.parametrize("slices", [5, {"j": 1.5}, {"j": "2"}, [["j"]]])
def test_what_are_no_slices(slices: Any) -> None:
    x = np.ones((3, 3))
    with pytest.raises(ct.InvalidValueError, match="slices are modes, or a mapping"):
        ct.contract("ij,jk->ik", x, x, slices=slices)


def test_slices_of_several_kinds_fit_together() -> None:
    """What the kinds take is not taken at once: a limit that each of them keeps is not enough."""
    rng = np.random.default_rng(6)
    arrays = [rng.random((24, 20, 24)) for _ in range(4)]  # row-major: plans with panels and tiles
    text = "aib,bjc,ckd,dla->ijkl"
    wanted = ct.contract(text, *arrays)
    for limit in (2_000_000, 3_000_000, 3_500_000):
        with ct.Handle(threads=2) as handle:
            found = ct.contract(text, *arrays, memory_limit=limit, handle=handle)
        np.testing.assert_allclose(found, wanted)
