"""The suites' path on a GPU, on the emulator: times mean nothing there, checked results do."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import contract
from bench import __main__ as command
from bench import candidates, cutensor, gpu, gpu_peers, report, small_calls
from bench.device import Ceilings, Sizes
from bench.library import Library
from bench.measure import calls_for
from bench.peers import find_peers
from bench.suites import column_major
from contract import ComputeType

from .build import compiler
from .cupy_surface.surface import installed
from .device import Device

CEILINGS = Ceilings(flops=1e13, bandwidth=1e12)
TINY = Sizes(gflop=1e-5, memory=1 << 14, permuted=1 << 12, growth=0.02)
CASES = (
    "tccg 1",
    "permute 3",
    "elementwise 1",
    "reduce 1",
    "overhead expression0",
    "overhead replay0",
    "network ring-small",
    "random 1",
    "pain 3",
)


@pytest.fixture(scope="module")
def cupy(device: Device) -> Iterator[Any]:
    """A CuPy on the emulator that can also be a peer: einsum is NumPy's, matmul does nothing."""
    with installed() as found:

        def einsum(text: str, *operands: Any, optimize: Any) -> Any:
            return found.asarray(np.einsum(text, *(x.get() for x in operands)))

        found.einsum = einsum
        found.matmul = lambda a, b, out: out
        yield found


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that the emulator does in no time, and ceilings without measuring them."""
    monkeypatch.setattr(gpu, "full_sizes", lambda free: TINY)
    monkeypatch.setattr(gpu.Gpu, "ceilings", lambda self, dtype, compute: CEILINGS)
    monkeypatch.setattr("bench.measure.BATCH_SECONDS", 0.0)


def run(suite: str, case: str, json: Path, *more: str) -> int:
    """One case of a suite in float32, beside CuPy."""
    where = ["--device", "gpu", "--dtype", "float32", "--peers", "cupy", "--json", str(json)]
    return command.main([suite, "--cases", case, *where, *more])


@pytest.mark.usefixtures("tiny", "cupy")
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_each_suite_is_right(case: str, tmp_path: Path) -> None:
    suite, id = case.split()
    target = tmp_path / "out.json"
    assert run(suite, id, target) == 0
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    (row,) = found["rows"]
    assert row["failed"] == {}
    assert row["error"].keys() == {"contract", "cupy"}
    for name, (least, most) in row["spread"].items():
        assert 0 < least <= row["seconds"][name] <= most
    assert found["device"] == "gpu"
    assert found["machine"]["gpu"] == "Emulated sm_90"
    assert found["machine"]["compute_capability"] == "9.0"
    assert found["versions"].keys() >= {"cupy", "cuda_driver", "cuda_runtime", "cublas"}
    assert found["ceilings"] == found["ceilings_after"] == {"flops": 1e13, "bandwidth": 1e12}


@pytest.mark.usefixtures("tiny", "cupy")
def test_a_compute_type_reaches_the_device(tmp_path: Path) -> None:
    """TF32 rounds inputs: the error is far above float32's, and within what is promised."""
    target = tmp_path / "out.json"
    assert run("tccg", "1", target, "--compute", "TF32") == 0
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["compute"] == "TF32"
    (row,) = found["rows"]
    assert 1e-2 < row["error"]["contract"] < row["tolerance"] == 1
    assert row["error"]["cupy"] < 1e-3


@pytest.mark.usefixtures("tiny", "cupy")
def test_candidates_are_ranks_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "names", lambda: ["contract", "rank 1"])
    target = tmp_path / "out.json"
    assert run("candidates", "1", target, "--compute", "TF32") == 0
    (row,) = json.loads(target.read_text(), parse_constant=pytest.fail)["rows"]
    assert row["failed"] == {}
    assert list(row["predictions"]) == ["contract", "rank 1"]
    assert row["error"].keys() == row["seconds"].keys() == row["predictions"].keys()
    reasons = [each["reason"] for each in row["predictions"].values()]
    assert len(set(reasons)) == 2
    assert "tf32 tensor cores: tiles of" in reasons[0]
    assert 1e-2 < row["error"]["contract"] < 1


@pytest.mark.usefixtures("tiny", "cupy")
def test_candidates_by_wgmma_are_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its time and what was predicted."""
    target = tmp_path / "out.json"
    assert run("candidates", "12", target, "--dtype", "bfloat16") == 0
    (row,) = json.loads(target.read_text(), parse_constant=pytest.fail)["rows"]
    assert row["failed"] == {}
    printed = capsys.readouterr().out
    for name, each in row["predictions"].items():
        if "wgmma" in each["reason"]:
            times = row["seconds"][name], each["seconds"]
            measured, predicted = (report.seconds_text(x) for x in times)
            assert f"{name}: {measured} of {predicted}, GETT {each['reason']}" in printed
    assert printed.count("TMA and wgmma") >= 3


# All that CuPy 14 has.
COMPUTE_DESCRIPTORS = {
    f"COMPUTE_DESC_{kind}" for kind in ("16F", "16BF", "TF32", "3xTF32", "32F", "64F")
}


class Binding:
    """What CuPy's binding of cuTENSOR is to a peer: names, and functions that are recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("COMPUTE_DESC_") and name not in COMPUTE_DESCRIPTORS:
            raise AttributeError(name)
        if name in COMPUTE_DESCRIPTORS or name.isupper():
            return name
        return lambda *given: self.calls.append((name, *given)) or 0


def test_cutensor_gets_the_compute_type_for_contractions_alone(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy_backends.cuda import libs

    binding = Binding()
    monkeypatch.setattr(libs, "cutensor", binding, raising=False)
    library = gpu_peers.PEERS["cutensor"]()
    half, single = (cupy.empty((2, 2), dtype, order="F") for dtype in ("float16", "float32"))
    for compute in (None, ComputeType.TF32, ComputeType.TF32X3):
        library.allow(compute)
        for text, *operands in (("ij,jk->ik", single, single), ("ij->j", single), ("ij->j", half)):
            library.product(text, operands, None)()
    created = [call for call in binding.calls if call[0].startswith("createC")]
    reduced = [call for call in binding.calls if call[0] == "createReduction"]
    allowed = [call[-1].removeprefix("COMPUTE_DESC_") for call in created]
    assert allowed == ["32F", "TF32", "3xTF32"]
    assert [call[-1] for call in reduced] == ["COMPUTE_DESC_32F"] * 6
    types = [call[5] for call in binding.calls if call[0] == "createTensorDescriptor"]
    assert set(types) == {"R_32F", "R_16F"}
    with pytest.raises(ImportError, match="has no COMPUTE_DESC_4X16F"):
        library.allow(ComputeType.F16X4)


@pytest.mark.usefixtures("device")  # its compiler
def test_cutensor_is_asked_for_what_cupy_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, library = tmp_path / "descriptors.cpp", tmp_path / "libcutensor.so"
    source.write_text('extern "C" { extern void *const CUTENSOR_COMPUTE_DESC_4X16F = (void *)42; }')
    subprocess.run([*compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(cutensor, "LIBRARY", str(library))
    assert cutensor._descriptor(Binding(), ComputeType.F16X4) == 42
    with pytest.raises(ImportError, match="has no COMPUTE_DESC_9X16BF"):
        cutensor._descriptor(Binding(), ComputeType.BF16X9)


@pytest.mark.parametrize(
    ("compute", "allowed"),
    [
        (None, (False, False, False)),
        (ComputeType.TF32, (True, False, False)),
        (ComputeType.TF32X3, (False, False, False)),
        (ComputeType.F16, (True, True, False)),
        (ComputeType.BF16, (True, False, True)),
    ],
)
def test_torch_is_as_quick_as_the_compute_type_allows(
    monkeypatch: pytest.MonkeyPatch, compute: ComputeType | None, allowed: tuple[bool, ...]
) -> None:
    matmul = SimpleNamespace()
    torch = SimpleNamespace(
        __version__="2",
        version=SimpleNamespace(cuda="12"),
        cuda=SimpleNamespace(is_available=lambda: True),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert list(find_peers(("torch",), "gpu", compute).found) == ["torch"]
    found = (
        matmul.allow_tf32,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    assert found == allowed


@pytest.mark.usefixtures("tiny")
def test_a_wrong_result_fails_its_row(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = cupy.zeros((3, 3), np.float32)
    monkeypatch.setattr(cupy, "einsum", lambda text, *operands, optimize: wrong)
    assert run("reduce", "1", tmp_path / "out.json") == 1
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["failed"].keys() == {"cupy"}


@pytest.mark.usefixtures("tiny", "cupy")
def test_missing_peers_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent() -> None:
        raise ImportError("No module named 'torch'")

    monkeypatch.setitem(command.PEERS["gpu"], "torch", absent)  # type: ignore[arg-type]
    arguments = ["reduce", "--cases", "1", "--device", "gpu", "--peers", "torch"]
    assert command.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    assert "missing: torch: No module named 'torch'" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["missing"] == {"torch": "No module named 'torch'"}


@pytest.mark.usefixtures("tiny", "cupy")
def test_a_peer_that_cannot_be_made_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(command.PEERS["gpu"], "cutensor", refuse)  # type: ignore[arg-type]
    arguments = ["reduce", "--cases", "1", "--device", "gpu", "--peers", "cutensor"]
    assert command.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["missing"] == {"cutensor": "RuntimeError: CUTENSOR_STATUS_NOT_SUPPORTED"}


@pytest.mark.usefixtures("tiny", "cupy")
def test_a_peer_that_refuses_a_case_fails_it_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = Library(refuse, lambda x: x)
    monkeypatch.setitem(command.PEERS["gpu"], "cupy", lambda: library)  # type: ignore[arg-type]
    assert run("reduce", "1", tmp_path / "out.json") == 1
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["failed"] == {"cupy": "RuntimeError: CUTENSOR_STATUS_NOT_SUPPORTED"}
    assert len(row["spread"]["contract"]) == 2


@pytest.mark.usefixtures("tiny")
def test_a_peer_that_fails_later_is_called_no_more(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right, calls = cupy.einsum, count()

    def einsum(*given: Any, **options: Any) -> Any:
        return right(*given, **options) if next(calls) < 3 else refuse()

    monkeypatch.setattr(cupy, "einsum", einsum)
    assert run("reduce", "1", tmp_path / "out.json") == 1
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["failed"].keys() == {"cupy"}
    assert "NOT_SUPPORTED, after right results" in row["failed"]["cupy"]
    assert len(row["spread"]["contract"]) == 2
    assert next(calls) == 4


def refuse(*given: Any) -> Any:
    raise RuntimeError("CUTENSOR_STATUS_NOT_SUPPORTED")


def test_arrays_keep_strides_and_results_keep_their_order(
    cupy: Any, rng: np.random.Generator
) -> None:
    device = gpu.Gpu(cupy)
    x = column_major(rng, (3, 4), "float64")
    rows = np.lib.stride_tricks.as_strided(x[:, 0], (5, 3), (0, 8))
    for each in (x, x[:, 0][None, :], rows):
        there = device.array(each)
        assert there.shape == each.shape
        assert there.size < 12 or there.strides == each.strides
        np.testing.assert_array_equal(device.numpy(there), each)
    assert device.numpy(device.array(x)).flags.f_contiguous


def test_copies_exceed_the_cache_within_bounds(cupy: Any) -> None:
    device = gpu.Gpu(cupy)
    cache = 60 << 20
    assert device.copies(cache) == 4
    assert device.copies(8) == gpu.COPIES
    assert device.copies(device.sizes.memory * 2) == 1


def test_a_batch_is_timed_by_events_and_a_call_until_it_returns(cupy: Any) -> None:
    device = gpu.Gpu(cupy)
    calls: list[int] = []
    run: Callable[[], None] = lambda: calls.append(1)  # noqa: E731
    assert device.clock(run, 3) >= 0
    assert device.call_clock(run, 2) > 0
    assert len(calls) == 5
    assert calls_for(run, lambda run, count: 0.001) == 32


@pytest.mark.parametrize(
    ("dtype", "compute", "products"),
    [
        ("complex64", None, "32F"),
        ("float32", ComputeType.TF32, "32F_FAST_TF32"),
        ("float32", ComputeType.BF16X9, "32F"),
        ("float64", ComputeType.INT8X8, "64F"),
        ("bfloat16", ComputeType.BF16, "32F"),
    ],
)
def test_ceilings_are_rates_of_the_compute_type(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, compute: Any, products: str
) -> None:
    monkeypatch.setattr(gpu, "PRODUCT_EXTENT", 8)
    monkeypatch.setattr(gpu, "COPY_BYTES", 1 << 16)
    device = gpu.Gpu(cupy)
    monkeypatch.setattr(device, "_best", lambda run: (run(), 0.5)[1])
    each = 8 if dtype == "complex64" else 2
    found = device.ceilings(dtype, compute)
    assert found == Ceilings(each * 8**3 / 0.5, 2 * (1 << 16) / 0.5)
    assert gpu.products_of(dtype, compute) == f"CUBLAS_COMPUTE_{products}"


def test_a_lost_device_ends_the_run(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = gpu.Gpu(cupy)
    assert not device.lost()
    error = cupy.cuda.runtime.CUDARuntimeError(1)

    def wait() -> None:
        raise error

    monkeypatch.setattr(device, "wait", wait)
    assert device.lost()
    entries = [command.Entry(str(at), lambda: 1 // 0) for at in range(3)]
    rows = list(command.measured(entries, device, CEILINGS, 5, "title"))
    assert [row.failures for row in rows] == [
        {"contract": "ZeroDivisionError: integer division or modulo by zero"}
    ]


def test_small_calls_are_right_and_a_wrong_one_is_seen(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    permuted = small_calls.CALLS[0]
    monkeypatch.setattr(small_calls, "DTYPES", ("float32",))
    monkeypatch.setattr(small_calls, "CALLS", (permuted,))
    monkeypatch.setattr(small_calls, "LARGE", small_calls.PRODUCT)
    monkeypatch.setattr(small_calls, "COMPUTE", small_calls.COMPUTE[:1])
    assert small_calls.main() == 0
    twisted = (lambda text, x: contract.permute(text, x, alpha=1.001), *permuted[1:])
    monkeypatch.setattr(small_calls, "CALLS", (twisted,))
    assert small_calls.main() == 1
    assert "abc->cab float32: error 1.0e-03" in capsys.readouterr().out
