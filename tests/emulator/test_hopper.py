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
    own = type(device)("sm_90a")
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


# --- how tiles lie in shared memory ---------------------------------------------------------------

TILE_BYTES = 8192
SWIZZLES = {16: 0, 32: 3, 64: 2, 128: 1}  # the layout type of a descriptor, by the width in bytes


def canonical(width: int, transposed: bool, rows: int) -> tuple[np.ndarray, int, int]:
    """Where each element (row, k) of a 16-bit tile lies (bytes), and the offsets LBO and SBO.

    The canonical layouts of the PTX manual as CuTe writes them, with T elements in 16 bytes and
    w times 16 bytes in a line, before the swizzle:
    K-major ((8,m),(T,2)):((wT,SBO),(1,T)), with w = 1 ((8,m),(T,2)):((1T,SBO),(1,LBO));
    MN-major ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO)), with w = 1 ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO)).
    """
    row, k = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
    eight = 8 * width  # bytes of eight lines
    match transposed, width:
        case False, 16:
            lbo, sbo = 16 * rows, eight
            at = row % 8 * 16 + row // 8 * sbo + k % 8 * 2 + k // 8 * lbo
        case False, _:
            lbo, sbo = 16, eight
            at = row % 8 * width + row // 8 * sbo + k * 2
        case True, 16:
            lbo, sbo = eight, 2 * eight
            at = row % 8 * 2 + row // 8 * sbo + k % 8 * 16 + k // 8 * lbo
        case _:
            lbo, sbo = 2 * eight, eight
            line = width // 2
            at = row % line * 2 + row // line * lbo + k % 8 * width + k // 8 * sbo
    return at ^ (at >> 7 & width // 16 - 1) << 4, lbo, sbo


def tile_and_descriptor(x: np.ndarray, width: int, transposed: bool) -> tuple[np.ndarray, int]:
    """The bytes of a tile whose elements are x (row, k), and its descriptor at address 0."""
    at, lbo, sbo = canonical(width, transposed, len(x))
    assert np.unique(at).size == at.size
    held = np.full(TILE_BYTES // 2, np.nan, "f2")
    held[at // 2] = x
    return held, lbo >> 4 << 16 | sbo >> 4 << 32 | SWIZZLES[width] << 62


@pytest.mark.parametrize("width", SWIZZLES)
@pytest.mark.parametrize(
    ("name", "by_m", "by_n"),
    [
        ("single_kk", False, False),
        ("single_mk", True, False),
        ("single_kn", False, True),
        ("single_mn", True, True),
    ],
)
def test_tiles_lie_as_in_the_manual(
    hopper: tuple[Device, Module],
    rng: np.random.Generator,
    name: str,
    by_m: bool,
    by_n: bool,
    width: int,
) -> None:
    device, module = hopper
    a, b = rng.standard_normal((64, 16)).astype("f2"), rng.standard_normal((32, 16)).astype("f2")
    held_a, descriptor_a = tile_and_descriptor(a, width, by_m)
    held_b, descriptor_b = tile_and_descriptor(b, width, by_n)
    memory = [device.upload(held_a), device.upload(held_b), device.allocate(4 * 64 * 32)]
    arguments = [*memory, np.uint64(descriptor_a), np.uint64(descriptor_b)]
    module.launch(name, (1,), (128,), arguments, 2 * TILE_BYTES)
    found = memory[2].download("f4", (64, 32))
    np.testing.assert_allclose(found, a.astype("f4") @ b.astype("f4").T, atol=1e-4)
