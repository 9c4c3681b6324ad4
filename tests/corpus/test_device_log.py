"""What calls on a GPU say and mark, against what the emulated GPU was asked to do."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract import logging
from contract.logging import Level
from tests.corpus import test_streams
from tests.devices import Gpu
from tests.emulator.cupy_surface.surface import counters

BLAS_ONLY = ct.PlanPreference(algo=ct.Algo.GEMM)


def added(a: Any, b: Any, in_place: bool, **given: Any) -> None:
    """cuBLAS adds to what is there: C has to be copied unless it is D."""
    with given["stream"]:
        c = a[:, :21].copy(order="F")
    out = c if in_place else None
    ct.contract("mk,kn->mn", a, b, c=c, out=out, preference=BLAS_ONLY, **given)


CALLS: dict[str, Callable[..., Any]] = {
    **{name: test_streams.CALLS[name] for name in ("blas", "gett", "expression", "reduce")},
    "einsum": lambda a, b, **given: ct.einsum("mk,kn->mn", a, b, stream=given["stream"]),
    "zero": lambda a, b, **given: ct.contract("mk,kn->mn", a, b, alpha=0, **given),
    "addend": lambda a, b, **given: added(a, b, False, **given),
    "in place": lambda a, b, **given: added(a, b, True, **given),
}
LAUNCH = re.compile(
    r"(\w+) grid=\((\d+),(\d+),(\d+)\) block=\((\d+),(\d+),(\d+)\) shared=(\d+) scratch=(\d+) "
    r"workspace=(\d+) stream=(0x[0-9a-f]+)"
)
BLAS = re.compile(
    r"(cublas\w+) m=33 n=21 k=40 batch=1 compute=32F workspace=(\d+) stream=(0x[0-9a-f]+)"
)


@pytest.fixture
def traced() -> Iterator[list[str]]:
    """The lines of the trace."""
    found: list[str] = []
    logging.to_python(logging.logging.getLogger("nobody"))
    logging.set_mask(Level.TRACE.bit)
    logging.set_callback(lambda level, function, message: found.append(message))
    yield found
    logging.set_callback(None)
    logging.set_file(None)
    logging.disable()


@pytest.mark.parametrize("call", CALLS)
def test_the_trace_is_what_was_launched(
    fake: Gpu, call: str, rng: np.random.Generator, traced: list[str]
) -> None:
    """Kernel, grid, block, shared memory and stream of every launch; every product of cuBLAS."""
    a, b = test_streams.made(fake, rng)
    stream, counted = fake.cupy.cuda.Stream(non_blocking=True), counters(fake.cupy)
    for _ in range(2):
        traced.clear()
        counted.reset()
        CALLS[call](a, b, handle=fake.handle, stream=stream)
        stream.synchronize()
    launches = [match for match in map(LAUNCH.fullmatch, traced) if match]
    products = [match for match in map(BLAS.match, traced) if match]
    assert len(launches) + len(products) == len(traced) > 0
    found = [(m[1], *map(int, m.group(*range(2, 9))), int(m[11], 16)) for m in launches]
    assert found == [
        (each.name, *each.grid, *each.block, each.shared, each.stream) for each in counted.launches
    ]
    assert [int(m[3], 16) for m in products] == [each.stream for each in counted.products]
    if call in ("addend", "in place"):
        assert (len(launches), len(products)) == (call == "addend", 1)


def test_calls_and_launches_are_ranges(
    fake: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the latest handle was made with CUTENSOR_NVTX_LEVEL=1."""
    a, b = test_streams.made(fake, rng)
    counted = counters(fake.cupy)
    monkeypatch.setenv("CUTENSOR_NVTX_LEVEL", "1")
    with ct.Handle(device=0) as handle:
        counted.reset()
        for alpha in (1, 1, 0):
            ct.contract("mk,kn->mn", a, b, handle=handle, alpha=alpha)
        first = ["contract", "contract/Handle.plan", "contract/multiply"]
        assert counted.ranges == [*first, *first[::2], "contract", "contract/elementwise"]
        counted.reset()
        with pytest.raises(ct.InvalidValueError):
            ct.permute("ab->a", a, handle=handle)
        ct.contract("mk,kn->mn", np.ones((3, 3)), np.ones((3, 3)))
        assert counted.ranges[0] == "permute"
        assert counted.ranges[-1] == "contract/Gemm"
        assert not counted.open_ranges
    monkeypatch.delenv("CUTENSOR_NVTX_LEVEL")
    ct.Handle().close()
    counted.reset()
    ct.contract("mk,kn->mn", a, b, handle=fake.handle)
    assert not counted.ranges
