"""Planted bugs: each must be found, on every schedule, and be called what it is."""

from collections.abc import Callable

import numpy as np
import pytest

from .device import Device, KernelFault, Kind, Module, Options
from .ptx import PtxError

Sample = Callable[[str], Module]

# A kernel of samples/faults.cu and what is wrong with it.
FAULTS = {
    "overrun": Kind.BOUNDS,
    "misaligned": Kind.MISALIGNED,
    "shared_overrun": Kind.BOUNDS,
    "no_barrier": Kind.RACE,
    "both_write": Kind.RACE,
    "no_warp_sync": Kind.RACE,
    "warp_sync_across_warps": Kind.RACE,
    "divergent_barrier": Kind.DIVERGENCE,
    "two_barriers": Kind.DIVERGENCE,
    "exit_before_barrier": Kind.DIVERGENCE,
    "waits_alone": Kind.DIVERGENCE,
    "missing_lane": Kind.LANES,
    "outside_mask": Kind.LANES,
    "not_in_mask": Kind.LANES,
    "reads_fresh_shared": Kind.UNINITIALISED,
    "reads_fresh_global": Kind.UNINITIALISED,
    "copy_race": Kind.RACE,
    "copy_no_wait": Kind.UNFINISHED,
    "plain_among_atomics": Kind.RACE,
    "traps": Kind.TRAP,
}
FINE = ("fine", "with_warp_sync", "atomics")

# A kernel of samples/tensor.cu; None: no fault, but a wrong result.
PIPELINE = {
    "no_barrier_before_use": {Kind.RACE, Kind.UNFINISHED},
    "no_barrier_before_refill": {Kind.RACE},
    "wait_too_late": {Kind.UNFINISHED},
    "no_wait": {Kind.UNFINISHED},
    "wrong_fragment": None,
    "no_row_guard": {Kind.BOUNDS},
    "no_k_guard": {Kind.BOUNDS},
    "no_store_guard": {Kind.BOUNDS},
    "misaligned_copy": {Kind.MISALIGNED},
    "odd_pitch": {Kind.MISALIGNED},
    "stage_overrun": {Kind.BOUNDS},
    "barrier_in_half": {Kind.RACE, Kind.UNFINISHED, Kind.DIVERGENCE},
}


def _run_small(device: Device, module: Module, name: str, options: Options) -> None:
    x, y = device.upload(np.arange(64, dtype="f4")), device.allocate(256)
    try:
        module.launch(name, (1,), (64,), [x, y], 0, options)
    finally:
        x.free()
        y.free()


@pytest.mark.parametrize("name", FAULTS)
def test_small_bug_is_named(device: Device, sample: Sample, options: Options, name: str) -> None:
    with pytest.raises(KernelFault) as raised:
        _run_small(device, sample("faults.cu"), name, options)
    assert raised.value.kind is FAULTS[name]
    assert f"kernel {name}, block (0, 0, 0), thread (" in str(raised.value)


@pytest.mark.parametrize("name", FINE)
def test_correct_kernel_passes(device: Device, sample: Sample, options: Options, name: str) -> None:
    _run_small(device, sample("faults.cu"), name, options)


def test_launch_after_a_fault_starts_clean(device: Device, sample: Sample) -> None:
    for name in FAULTS:
        with pytest.raises(KernelFault):
            _run_small(device, sample("faults.cu"), name, Options())
        _run_small(device, sample("faults.cu"), "with_warp_sync", Options())


@pytest.mark.parametrize("name", PIPELINE)
def test_pipeline_bug_is_found(
    device: Device, sample: Sample, options: Options, rng: np.random.Generator, name: str
) -> None:
    m, n, k = 50, 70, 44
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((n, k), "f4")
    held = [device.upload(a), device.upload(b), device.allocate(4 * m * n)]
    kinds, found = PIPELINE[name], None
    try:
        sample("tensor.cu").launch(name, (3, 2), (128,), [*held, m, n, k], 10240, options)
    except KernelFault as fault:
        found = fault.kind
    got = held[2].download("f4", (m, n))
    for each in held:
        each.free()
    if kinds is None:
        assert found is None
        assert np.abs(got - a @ b.T).max() > 1
    else:
        assert found in kinds


def test_fault_names_the_source_line(device: Device, sample: Sample) -> None:
    with pytest.raises(KernelFault, match=r"source line 5, PTX line \d+: st.global.f32"):
        _run_small(device, sample("faults.cu"), "overrun", Options())


def test_copies_that_land_at_once_hide_nothing(device: Device, sample: Sample) -> None:
    with pytest.raises(KernelFault, match=r"before the cp\.async"):
        _run_small(device, sample("faults.cu"), "copy_no_wait", Options(late=False))


def test_fresh_memory_is_nan_where_reading_it_is_allowed(device: Device, sample: Sample) -> None:
    x, y = device.upload(np.arange(64, dtype="f4")), device.allocate(256)
    sample("faults.cu").launch("reads_fresh_shared", (1,), (64,), [x, y], 0, Options(strict=False))
    got = y.download("f4")
    np.testing.assert_array_equal(got[:60], np.arange(60))
    assert np.isnan(got[60:]).all()


def test_freed_memory_is_out_of_bounds(device: Device, sample: Sample) -> None:
    x, y = device.upload(np.arange(64, dtype="f4")), device.allocate(256)
    x.free()
    with pytest.raises(KernelFault) as raised:
        sample("faults.cu").launch("fine", (1,), (64,), [x, y])
    assert raised.value.kind is Kind.BOUNDS


@pytest.mark.parametrize(
    ("shared", "limit", "works"),
    [
        (256, 48 << 10, True),
        (252, 48 << 10, False),  # a word too few
        (48 << 10, 48 << 10, True),
        (49 << 10, 48 << 10, False),  # not opted in
        (227 << 10, 227 << 10, True),
        (228 << 10, 228 << 10, False),  # more than the device has
    ],
)
def test_dynamic_shared_memory(
    device: Device, sample: Sample, shared: int, limit: int, works: bool
) -> None:
    x, y = device.upload(np.arange(64, dtype="f4")), device.allocate(256)
    module = sample("faults.cu")
    if works:
        module.launch("dynamic", (1,), (64,), [x, y], shared, shared_limit=limit)
        return
    with pytest.raises(KernelFault) as raised:
        module.launch("dynamic", (1,), (64,), [x, y], shared, shared_limit=limit)
    assert raised.value.kind in (Kind.LAUNCH, Kind.BOUNDS)


@pytest.mark.parametrize(
    "change",
    [
        ("add.f32", "add.rn.relu.f32"),
        ("ld.global.f32", "ld.global.f31"),
        ("bar.sync", "bar.sync.now"),
        ("%tid.x", "%pm0"),
    ],
)
def test_unknown_text_is_an_error(device: Device, change: tuple[str, str]) -> None:
    text = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .f32 %f<3>; .reg .b64 %rd<2>; .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; bar.sync 0;
  ld.global.f32 %f1, [%rd1]; add.f32 %f2, %f1, %f1; st.global.f32 [%rd1], %f2; ret;
}"""
    device.load_ptx(text)
    with pytest.raises(PtxError, match=change[1].replace(".", r"\.")):
        device.load_ptx(text.replace(*change))
