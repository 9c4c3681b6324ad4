"""TMA, mbarriers and wgmma: a product on every schedule, and its planted bugs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from .device import Device, KernelFault, Kind, Module, Options, tensor_map

M, N, K = 100, 40, 216
SHARED = 2 * (64 + 32) * 128

# A kernel of samples/hopper.cu; None: no fault, but a wrong result.
BUGS = {
    "no_fence_after_init": {Kind.PROXY},
    "no_barrier_after_init": {Kind.RACE, Kind.UNINITIALISED},
    "no_mbarrier_wait": {Kind.RACE, Kind.PROXY},
    "wrong_parity": {Kind.RACE, Kind.PROXY, Kind.DEADLOCK},
    "too_few_bytes": {Kind.RACE, Kind.DEADLOCK},
    "no_wgmma_fence": {Kind.PROTOCOL},
    "no_wgmma_wait": {Kind.RACE},
    "no_barrier_before_refill": {Kind.RACE},
    "no_proxy_fence": {Kind.PROXY},
    "wrong_swizzle": None,
}


@pytest.fixture(scope="module")
def hopper(device: Device) -> tuple[Device, Module]:
    """An sm_90a with samples/hopper.cu loaded."""
    own = Device("sm_90a")
    source = Path(__file__).parent / "samples" / "hopper.cu"
    return own, own.load(source.read_text())


@pytest.fixture
def multiply(
    hopper: tuple[Device, Module], options: Options, rng: np.random.Generator
) -> Callable[[str], float]:
    """Run a kernel; the largest error of its result."""
    device, module = hopper
    a, b = rng.standard_normal((M, K)).astype("f2"), rng.standard_normal((N, K)).astype("f2")

    def run(name: str) -> float:
        memory = [device.upload(a), device.upload(b), device.allocate(4 * M * N)]
        maps = tensor_map(memory[0], a, (64, 64), 128), tensor_map(memory[1], b, (64, 32), 128)
        arguments = [*maps, memory[2], M, N, K]
        module.launch(name, (2, 2), (128,), arguments, SHARED, options)
        flipped = b.astype("f4") * np.where(np.arange(K) < 64, -1, 1)
        error = np.abs(memory[2].download("f4", (M, N)) - a.astype("f4") @ flipped.T)
        return float(error.max())

    return run


def test_wgmma_pipeline_multiplies(multiply: Callable[[str], float]) -> None:
    assert multiply("right") < 1e-3


@pytest.mark.parametrize("name", BUGS)
def test_hopper_bug_is_found(multiply: Callable[[str], float], name: str) -> None:
    kinds = BUGS[name]
    if kinds is None:
        assert multiply(name) > 1
        return
    with pytest.raises(KernelFault) as raised:
        multiply(name)
    assert raised.value.kind in kinds
