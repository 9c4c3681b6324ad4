"""Every verb on device arrays: dispatch, keys, refusals, streams, and the seam to an executor.

The arrays are the emulator's. Plans are run by the host's kernels on copies of them, so that
this holds whatever kernels there are for a device.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.api import request
from contract.descriptors.layout import offset_bounds
from contract.device.arrays import DeviceArrays
from contract.execution.executor import Footprint, Loaded, Scalars
from contract.host.executor import HostExecutor
from contract.logging import Ranges
from contract.machines.cpu import HOST
from contract.plan.steps import Plan
from contract.session.handle import device_handle
from tests.documents import blocks, run

from .cupy_surface import counters, installed

RNG = np.random.default_rng(7)
A, B, C = RNG.random((3, 4)), RNG.random((4, 5)), RNG.random((3, 5))


class Borrowed(Loaded):
    """A plan loaded for the host that runs on copies of device arrays."""

    def __init__(self, executor: "BorrowedExecutor", plan: Plan) -> None:
        host = executor.host.load(plan)
        self.plan, self.arrays, self.executor, self.host = plan, executor.arrays, executor, host
        self.required_workspace, self.reads_addend = host.required_workspace, host.reads_addend
        self.tile_bytes, self.own_bytes, self.product = host.tile_bytes, host.own_bytes, None
        self.measured = None

    def new_output(self) -> Any:  # type: ignore[override]
        made = self.host.new_output()
        return self.executor.cupy.ndarray(made.shape, made.dtype, strides=made.strides)

    def __call__(
        self,
        inputs: Sequence[Any],
        output: Any,
        addend: Any,
        scalars: Scalars,
        workspace: Any = None,
    ) -> None:
        cupy = self.executor.cupy
        assert {type(x) for x in (*inputs, output)} == {cupy.ndarray}
        stream = cupy.cuda.get_current_stream()
        self.executor.ran.append((cupy.cuda.runtime.getDevice(), stream))
        result = mirrored(output)
        c = None if addend is None else mirrored(addend)
        self.host([mirrored(x) for x in inputs], result, c, scalars, None)
        output[...] = cupy.asarray(np.ascontiguousarray(result).reshape(output.shape))

    def trace(self, *given: Any) -> Iterator[str]:
        yield "runs on the host"

    def ranged(self, ranges: Ranges) -> "Borrowed":
        return self


class BorrowedExecutor:
    """DeviceExecutor's place; ``ran`` has the device and the stream of every run."""

    machine = HOST
    stand_in = None

    def __init__(self, cupy: Any, device: int) -> None:
        self.cupy, self.arrays = cupy, DeviceArrays(cupy, device)
        self.host = HostExecutor("numpy", 1)
        self.ran: list[tuple[int, Any]] = []
        self.plans: list[Plan] = []

    def load(self, plan: Plan, measured: float | None = None) -> Borrowed:
        assert self.cupy.cuda.runtime.getDevice() == self.arrays.device
        self.plans.append(plan)
        return Borrowed(self, plan)

    def footprint(self, plan: Plan) -> Footprint:
        return self.host.footprint(plan)

    def close(self) -> None:
        self.host.close()


def mirrored(x: Any) -> np.ndarray:
    """The elements on the host, in the same strides."""
    if not x.size:
        return np.empty(x.shape, x.dtype)
    low, high = offset_bounds(x.shape, x.strides)
    memory = np.zeros(high - low + x.itemsize, np.uint8)
    first = memory[-low : -low + x.itemsize].view(x.dtype)
    found = np.lib.stride_tricks.as_strided(first, x.shape, x.strides)
    found[...] = x.get()
    return found


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The emulator's CuPy, two devices, and the stand-in for the executor."""
    opened = "contract.session.handle._open"
    monkeypatch.setattr(opened, lambda cupy, at, _: BorrowedExecutor(cupy, at))
    with installed() as module:
        yield module


def on(cupy: Any, device: int, x: Any) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(x)


def strided(cupy: Any, x: np.ndarray) -> Any:
    """A device array with the very strides of ``x``."""
    low, high = offset_bounds(x.shape, x.strides)
    memory = cupy.zeros(high - low + x.itemsize, np.uint8)
    view = cupy.ndarray(x.shape, x.dtype, memory.data + -low, x.strides)
    view[...] = cupy.asarray(np.ascontiguousarray(x).reshape(x.shape))
    return view


# --- the verbs ----------------------------------------------------------------------------------

VERBS: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    ("contract", ct.contract, ("ij,jk->ik", A, B), {}),
    ("interleaved", ct.contract, (A, "ij", B, "jk", "ki"), {"alpha": 2, "order": "C"}),
    ("addend", ct.contract, ("ij,jk->ik", A, B), {"c": C, "beta": 0.5}),
    ("unread", ct.contract, ("ij,jk->ik", A, B), {"c": C, "beta": 0}),
    ("three", ct.contract_trinary, ("ij,jk,ik->i", A, B, C), {"d": C[:, 0]}),
    ("many", ct.contract, ("ij,jk,ik,j->", A, B, C, B[:, 0]), {"optimize": "greedy"}),
    ("backwards", ct.contract, ("ij,jk->ik", A[::-1, ::2], B[::2, ::-1]), {}),
    ("permute", ct.permute, ("ij->ji", A), {"operator": "neg", "dtype": "float32"}),
    ("padded", ct.permute, ("ij->ji", A), {"padding": [(1, 0), (0, 2)], "padding_value": 3}),
    ("reduce", ct.reduce, ("ij->j", A), {"op": "max"}),
    ("binary", ct.elementwise_binary, ("ij,ji->ij", A, A.T), {"gamma": 3}),
    ("trinary", ct.elementwise_trinary, ("ij,j,i->ij", A, A[0], A[:, 0]), {"op_ab": "mul"}),
    ("layout", ct.convert_layout, (RNG.random((2, 8, 3, 3)), "NCHW", "NC/4HW4"), {}),
    ("einsum", ct.einsum, ("ij,jk", A, B), {"optimize": True}),
    ("einsum labels", ct.einsum, (A, [0, 1], B, [1, 2]), {"dtype": "complex128"}),
    ("einsum narrowed", ct.einsum, ("ij,jk", A, B), {"dtype": "float32", "casting": "unsafe"}),
    ("einsum view", ct.einsum, ("ij->ji", A), {}),
    ("einsum trace", ct.einsum, ("ii", A[:, :3]), {}),
    ("einsum path", ct.einsum, ("ij,jk,k", A, B, B[0]), {"optimize": ("greedy", 100)}),
    ("bfloat16", ct.contract, ("ij,jk->ik", A.astype("bfloat16"), B.astype("bfloat16")), {}),
    ("integers", ct.contract, ("i,i->", np.arange(5), np.arange(5)), {}),
    ("nothing", ct.contract, ("ij,jk->ik", A[:, :0], B[:0]), {}),
]


@pytest.mark.parametrize(("verb", "arguments", "options"), [v[1:] for v in VERBS], ids=lambda x: "")
def test_verbs_give_device_arrays_with_the_hosts_values(
    cupy: Any, verb: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    def moved(x: Any) -> Any:
        return strided(cupy, x) if isinstance(x, np.ndarray) else x

    wanted = verb(*arguments, **options)
    for _ in range(2):  # planned, then from the cache
        options = {name: moved(x) for name, x in options.items()}
        found = verb(*map(moved, arguments), **options)
        assert type(found) is cupy.ndarray
        assert (found.shape, found.dtype) == (np.shape(wanted), np.asarray(wanted).dtype)
        np.testing.assert_allclose(found.get().astype("D"), np.asarray(wanted).astype("D"))


def test_a_single_operand_of_einsum_is_a_view(cupy: Any) -> None:
    x = cupy.asarray(RNG.random((3, 3)))
    diagonal = ct.einsum("ii->i", x)
    assert diagonal.data.ptr == x.data.ptr
    diagonal[...] = cupy.zeros(3)
    assert np.trace(x.get()) == 0


def test_einsum_narrows_as_cupy_does_unless_told_otherwise(cupy: Any) -> None:
    x = cupy.asarray(A)
    assert ct.einsum("ij->i", x, dtype="float32").dtype == np.float32
    with pytest.raises(ct.UnsupportedTypeError, match="'safe'"):
        ct.einsum("ij->i", x, dtype="float32", casting="safe")


def test_einsum_copies_what_is_no_array_to_the_device_as_cupy_does(cupy: Any) -> None:
    x = cupy.asarray(A)
    for other, plain in ((B, B), (B.tolist(), B), (B.astype("f4"), B.astype("f4"))):
        np.testing.assert_allclose(ct.einsum("ij,jk->ik", x, other).get(), A @ plain)
    np.testing.assert_allclose(ct.einsum("ij,->ij", x, 2.0).get(), 2 * A)
    np.testing.assert_allclose(ct.einsum([[1.0, 2, 3]], [0, 1], x, [1, 2]).get(), [[1, 2, 3]] @ A)


def test_einsum_path_plans_for_the_device(cupy: Any) -> None:
    path, table = ct.einsum_path("ij,jk,k->i", *map(cupy.asarray, (A, B, B[0])))
    assert path == ["einsum_path", *path[1:]]
    assert len(path) == 3
    assert table == str(borrowed(device_handle(cupy, 0)).plans[0])


def test_out_is_returned_and_written(cupy: Any) -> None:
    out = cupy.zeros((3, 5))
    assert ct.contract("ij,jk->ik", cupy.asarray(A), cupy.asarray(B), out=out) is out
    np.testing.assert_allclose(out.get(), A @ B)
    assert ct.einsum("ij,jk->ik", cupy.asarray(A), cupy.asarray(B), out=out[::-1]) is not None
    np.testing.assert_allclose(out.get()[::-1], A @ B)


def test_subclasses_are_taken_as_arrays(cupy: Any) -> None:
    class Mine(cupy.ndarray):  # type: ignore[misc,name-defined]
        pass

    plain = cupy.asarray(A)
    mine = Mine(plain.shape, plain.dtype, plain.data)
    found = ct.contract("ij,jk->ik", mine, cupy.asarray(B))
    assert type(found) is cupy.ndarray
    np.testing.assert_allclose(found.get(), A @ B)


# --- overlap, alignment, memory -------------------------------------------------------------------


def test_an_output_that_overlaps_an_operand_is_computed_apart(cupy: Any) -> None:
    x = cupy.asarray(RNG.random((4, 4)))
    wanted = x.get() @ x.get()
    ct.contract("ij,jk->ik", x, x, out=x)
    np.testing.assert_allclose(x.get(), wanted)


def test_overlap_is_told_from_the_ranges_of_addresses(cupy: Any) -> None:
    arrays = DeviceArrays(cupy, 0)
    x = cupy.zeros((4, 6))
    assert arrays.may_share(x[:2], x[1:3])
    assert arrays.may_share(x[::-1], x[3:])
    assert arrays.may_share(x[:, 0], x[:, 1])  # the ranges do, the elements do not
    assert not arrays.may_share(x[:2], x[2:])
    assert not arrays.may_share(x[1::-1], x[2:])
    assert not arrays.may_share(x, x[1:1])


def test_alignment_is_part_of_the_key(cupy: Any) -> None:
    x = cupy.asarray(RNG.random((5, 4)).astype("f4"))
    with ct.Handle(device=0) as handle:
        executor = borrowed(handle)
        for part in (x[:4], x[1:], x[:4].reshape(-1)[1:13].reshape(3, 4), x[2:]):
            assert ct.reduce("ij->i", part, handle=handle).shape == part.shape[:1]
        alignments = [plan.slots[0].tensor.alignment for plan in executor.plans]
        assert alignments == [16, 4, 16]  # of x[1:] is that of x[:4]: the rows have 16 bytes
        assert {plan.slots[1].tensor.alignment for plan in executor.plans} == {16}


def borrowed(handle: ct.Handle) -> BorrowedExecutor:
    assert isinstance(handle.executor, BorrowedExecutor)
    return handle.executor


def odd(cupy: Any, values: np.ndarray) -> Any:
    """A device array whose address is odd."""
    memory = cupy.zeros(values.nbytes + 1, np.uint8)
    bytes_ = np.frombuffer(values.tobytes(), np.uint8)
    memory[1:] = cupy.asarray(bytes_)
    return cupy.ndarray(values.shape, values.dtype, memory.data + 1)


def test_an_address_that_is_no_multiple_of_the_item_size_is_copied_first(cupy: Any) -> None:
    x, out = odd(cupy, A), odd(cupy, np.zeros((3, 5)))
    found = ct.contract("ij,jk->ik", x, cupy.asarray(B), c=odd(cupy, C), out=out)
    assert found is out
    whole = cupy.ndarray((120,), np.uint8, out.data).get()
    np.testing.assert_allclose(whole.view("f8").reshape(3, 5), A @ B + C)


def test_more_memory_than_the_device_has_is_refused(cupy: Any) -> None:
    x = cupy.ndarray((1 << 20,), np.int8, cupy.zeros(1, np.int8).data, (0,))
    with pytest.raises(ct.InsufficientWorkspaceError, match="bytes are free"):
        ct.contract("i,j->ij", x, x)


# --- devices and streams --------------------------------------------------------------------------


def test_a_call_runs_where_its_operands_are(cupy: Any) -> None:
    x, y = on(cupy, 1, A), on(cupy, 1, B)
    assert cupy.cuda.runtime.getDevice() == 0
    for verb in (ct.contract, ct.einsum, ct.contract):
        found = verb("ij,jk->ik", x, y)
        assert found.data.device_id == 1
        np.testing.assert_allclose(found.get(), A @ B)
    assert cupy.cuda.runtime.getDevice() == 0


def test_a_call_runs_on_the_stream_it_is_given(cupy: Any) -> None:
    x, y = cupy.asarray(A), cupy.asarray(B)
    cupy.cuda.Device(0).synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with ct.Handle(device=cupy.cuda.Device(0)) as handle:
        ran = borrowed(handle).ran
        calls: list[Callable[..., Any]] = [
            lambda **s: ct.contract("ij,jk->ik", x, y, handle=handle, **s),
            lambda **s: ct.permute("ij->ji", x, handle=handle, **s),
            lambda **s: ct.reduce("ij->i", x, handle=handle, **s),
            lambda **s: ct.elementwise_binary("ij,ij->ij", x, x, handle=handle, **s),
            lambda **s: ct.elementwise_trinary("ij,ij,ij->ij", x, x, x, handle=handle, **s),
            lambda **s: ct.convert_layout(x[None, None], "NCHW", "NHWC", handle=handle, **s),
            lambda **s: ct.contract_expression("ij,jk->ik", A.shape, y, handle=handle)(x, **s),
        ]
        for call in calls:
            call()
            assert ran.pop() == (0, cupy.cuda.get_current_stream())
            call(stream=stream)
            assert ran.pop() == (0, stream)
    ct.einsum("ij,jk->ik", x, y, stream=stream)
    assert borrowed(device_handle(cupy, 0)).ran == [(0, stream)]
    assert cupy.cuda.get_current_stream() != stream


def test_streams_of_elsewhere_are_refused(cupy: Any) -> None:
    with cupy.cuda.Device(1):
        other = cupy.cuda.Stream()
    with pytest.raises(ct.InvalidValueError, match="device 0"):
        ct.contract("ij->i", cupy.asarray(A), stream=other)
    with pytest.raises(ct.InvalidValueError, match="device 0"):
        ct.contract("ij->i", cupy.asarray(A), stream=3)
    for verb in (ct.contract, ct.einsum, ct.permute):
        with pytest.raises(ct.InvalidValueError, match="host has no streams"):
            verb("ij->ji", A, stream=other)


# --- refusals -------------------------------------------------------------------------------------

MIXED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda x, y: ct.contract("ij,jk", A, x), "operand 0 is a NumPy array, operand 1 is a CuPy"),
    (lambda x, y: ct.contract("ij,jk", x, A), "operand 0 is a CuPy array on device 0, operand 1"),
    (lambda x, y: ct.contract("ij,jk", x, y), "device 0, operand 1 is a CuPy array on device 1"),
    (lambda x, y: ct.einsum("ij,jk", x, y), "device 0, operand 1 is a CuPy array on device 1"),
    (lambda x, y: ct.einsum(A, [0, 1], x, [1, 2]), "operand 1 is a CuPy array on device 0"),
    (lambda x, y: ct.einsum("ij->ij", A, out=x), "operand 0 is a NumPy array, out is a CuPy"),
    (lambda x, y: ct.einsum_path("ij,jk", A, x), "operand 1 is a CuPy array on device 0"),
    (lambda x, y: ct.contract("ij->ij", x, out=A), "device 0, out is a NumPy array"),
    (lambda x, y: ct.contract("ij->ij", A, out=x), "NumPy array, out is a CuPy array on device 0"),
    (lambda x, y: ct.contract("ij->ij", x, c=y), "device 0, c is a CuPy array on device 1"),
    (lambda x, y: ct.contract("ij->ij", A, c=y), "NumPy array, c is a CuPy array on device 1"),
    (lambda x, y: ct.contract("ij,->ij", x, np.float64(2)), "operand 1 is a float64"),
    (lambda x, y: ct.contract("ij,->ij", x, np.ones(())), "operand 1 is a NumPy array"),
    (lambda x, y: ct.contract(",ij->ij", 2, x), "device 0, operand 0 is a int"),
    (lambda x, y: ct.elementwise_binary("ij,ij->ij", [[1]], x), "operand 0 is a list"),
    (
        lambda x, y: ct.contract("ij->i", y, handle=ct.Handle(device=0)),
        "own kind, here CuPy",
    ),
    (lambda x, y: ct.contract("ij->i", A, handle=ct.Handle(device=0)), "operand 0 is a NumPy"),
    (lambda x, y: ct.contract("ij->i", x, handle=ct.Handle()), "here NumPy arrays: operand 0 is a"),
    (lambda x, y: ct.convert_layout(x, "NCHW", "NHWC", handle=ct.Handle()), "here NumPy arrays"),
    (lambda x, y: ct.contract_expression("ij,jk", x, y), "operand 1 is a CuPy array on device 1"),
    (lambda x, y: ct.contract_expression("ij,jk", x, (4, 4))(A), "operand 1 is a NumPy array"),
    (lambda x, y: ct.contract_expression("ij,jk", A, (4, 4))(x), "operand 1 is a CuPy array"),
]


def test_a_cached_call_still_tells_devices_apart(cupy: Any) -> None:
    x, y, z = on(cupy, 0, A), on(cupy, 0, B), on(cupy, 1, B)
    product = ct.contract_expression("ij,jk->ik", x, B.shape)
    calls: list[Callable[[Any], Any]] = [
        lambda b: ct.contract("ij,jk->ik", x, b),
        lambda b: ct.einsum("ij,jk->ik", x, b),
        product,
    ]
    for call in calls:
        call(y)
        with pytest.raises(ct.InvalidValueError, match="operand 1 is a CuPy array on device 1"):
            call(z)


@pytest.mark.parametrize(("call", "message"), MIXED)
def test_mixed_kinds_and_devices_are_refused(
    cupy: Any, call: Callable[[Any, Any], Any], message: str
) -> None:
    with pytest.raises(ct.InvalidValueError, match=message):
        call(on(cupy, 0, np.ones((4, 4))), on(cupy, 1, np.ones((4, 4))))


def test_an_out_that_is_no_array_is_refused_by_type(cupy: Any) -> None:
    with pytest.raises(ct.UnsupportedTypeError, match="a CuPy array on device 0: it is a list"):
        ct.contract("ij->i", cupy.asarray(A), out=[0])
    with pytest.raises(ct.UnsupportedTypeError, match="must be a NumPy array: it is a list"):
        ct.contract("ij->i", A, out=[0])


def test_scalars_on_a_device_are_refused_without_a_synchronisation(cupy: Any) -> None:
    x, one = cupy.asarray(A), cupy.ones(())
    before = counters(cupy).synchronisations
    calls: list[Callable[[], Any]] = [
        lambda: ct.contract("ij->i", x, alpha=one),
        lambda: ct.contract("ij->i", A, alpha=one),
        lambda: ct.contract("ij->ij", x, c=x, beta=one),
        lambda: ct.contract("ij->ij", x, beta=one),
        lambda: ct.elementwise_binary("ij,ij->ij", x, x, gamma=one),
        lambda: ct.permute("ij->ij", x, padding=[(1, 1), (1, 1)], padding_value=one),
    ]
    for call in calls:
        with pytest.raises(ct.InvalidValueError, match="must be a number on the host"):
            call()
    assert counters(cupy).synchronisations == before


def test_types_that_a_device_has_not_are_refused(cupy: Any) -> None:
    x = cupy.asarray(A)
    for dtype in ("longdouble", "object"):
        with pytest.raises(ct.UnsupportedTypeError, match="bfloat16"):
            ct.permute("ij->ji", x, dtype=dtype)


# --- handles --------------------------------------------------------------------------------------


def test_settings_of_the_host_and_unknown_devices_are_refused(cupy: Any) -> None:
    for options, message in (
        ({"kernels": "numpy"}, "kernels is a setting of the host"),
        ({"threads": 2}, "threads is a setting of the host"),
    ):
        with pytest.raises(ct.InvalidValueError, match=message):
            ct.Handle(device=0, **options)  # type: ignore[arg-type]
    for device in (2, -1, "gpu", 1.0):
        with pytest.raises(ct.InvalidValueError, match="device is"):
            ct.Handle(device)


def test_a_machine_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed() as cupy:
        runtime = cupy.cuda.runtime

        def none() -> int:
            raise runtime.CUDARuntimeError(1)

        monkeypatch.setattr(runtime, "getDeviceCount", none)
        with pytest.raises(ct.NotSupportedError, match="no GPU"):
            ct.Handle(0)


def test_a_machine_without_cupy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ct.NotSupportedError, match=r"cupy-cuda12x.*cupy-cuda13x"):
        ct.Handle(0)


def test_the_host_does_not_import_cupy() -> None:
    program = (
        "import sys, numpy as np, contract as ct\n"
        "x = np.ones((3, 3))\n"
        "ct.contract('ij,jk', x, x.tolist(), c=x, out=x)\n"
        "ct.einsum('ij,jk', x, x)\n"
        "ct.contract_expression('ij,jk', x, (3, 3))(x)\n"
        "assert not {'cupy', 'contract.device.executor'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_plan_runs_where_it_was_made(cupy: Any) -> None:
    tensor = ct.TensorDescriptor((3, 4))
    operation = ct.ElementwiseOperation((ct.Operand(tensor, "ab"),), ct.Operand(tensor, "ab"))
    with ct.Handle() as host, ct.Handle(0) as handle, ct.Handle(1) as other:
        plan, x = host.plan(operation), cupy.zeros((3, 4), order="F")
        with pytest.raises(ct.InvalidValueError, match="takes NumPy arrays, the handle CuPy"):
            handle.permute(plan, 1, x, x)
        with pytest.raises(ct.InvalidValueError, match="Operand 0 must be a NumPy array"):
            host.permute(plan, 1, x, x)
        with pytest.raises(ct.InvalidValueError, match="must be a CuPy array on device 0"):
            handle.permute(handle.plan(operation), 1, x, np.zeros((3, 4)))
        with pytest.raises(ct.InvalidValueError, match="device 1: it is a CuPy array on device 0"):
            other.permute(other.plan(operation), 1, x, x)


def test_descriptors_on_a_device(cupy: Any) -> None:
    a, b, d = (ct.TensorDescriptor(shape, alignment=16) for shape in ((3, 4), (4, 5), (3, 5)))
    operation = ct.Contraction((ct.Operand(a, "ij"), ct.Operand(b, "jk")), ct.Operand(d, "ik"))
    x, y = cupy.asarray(np.asfortranarray(A)), cupy.asarray(B.T.ravel())
    out = cupy.zeros((3, 5), order="F")
    stream = cupy.cuda.Stream()
    with ct.Handle(0) as handle:
        plan = handle.plan(operation)
        work = cupy.zeros(plan.required_workspace + 256, np.uint8)
        handle.contract(plan, 2, x, y, 0, None, out, work, stream)
        assert borrowed(handle).ran == [(0, stream)]
        np.testing.assert_allclose(out.get(), 2 * A @ B)
        shifted = cupy.zeros(13)[1:]
        with pytest.raises(ct.InvalidValueError, match=r"alignment of 16 bytes.*multiple of 8"):
            handle.contract(plan, 2, shifted, y, 0, None, out)
        with pytest.raises(ct.InvalidValueError, match="CuPy array on device 0 of numbers"):
            handle.contract(plan, 2, x, y, 0, None, out, np.zeros(4096, np.uint8))
        with pytest.raises(ct.InvalidValueError, match="beta must be a number on the host"):
            handle.contract(plan, 2, x, y, cupy.zeros(()), None, out)


def test_a_cached_call_neither_parses_nor_plans(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cupy.asarray(A), cupy.asarray(B)
    with ct.Handle(0) as handle:
        ct.contract("ij,jk->ki", x, y, handle=handle)

        def refuse(*_: Any) -> None:
            raise AssertionError("a cached call came here")

        for name in ("parse", "operation_for", "call_for"):
            monkeypatch.setattr(request, name, refuse)
        monkeypatch.setattr("contract.api.contraction.evaluate", refuse)
        np.testing.assert_allclose(ct.contract("ij,jk->ki", x, y, handle=handle).get(), (A @ B).T)


def test_the_example_of_the_readme(cupy: Any) -> None:
    (block,) = (each for each in blocks() if "import cupy" in each.code)
    names = {"ct": ct, "A": RNG.random((4, 5, 6)), "B": RNG.random((7, 5))}
    run(block, names)
    np.testing.assert_allclose(names["W"].get(), np.einsum("abc,kb->ac", names["A"], names["B"]))


# --- expressions ----------------------------------------------------------------------------------


def test_an_expression_follows_its_operands_and_is_planned_once_there(cupy: Any) -> None:
    product = ct.contract_expression("ij,jk->ik", A.shape, B.shape)
    x, y = (cupy.asarray(np.asfortranarray(each)) for each in (A, B))
    loads = []
    for _ in range(3):
        np.testing.assert_allclose(product(x, y).get(), A @ B)
        (planned,) = product._elsewhere.values()
        loads.append(len(borrowed(planned._handle).plans))
    assert len(set(loads)) == 1
    np.testing.assert_allclose(product(A, B), A @ B)
    np.testing.assert_allclose(product(on(cupy, 1, A), on(cupy, 1, B)).get(), A @ B)


def test_an_expression_computes_where_its_constants_are(cupy: Any) -> None:
    x, y = on(cupy, 1, A), on(cupy, 1, B)
    product = ct.contract_expression("ij,jk->ik", A.shape, y, constants=[1])
    found = product(x, alpha=3)
    assert found.data.device_id == 1
    np.testing.assert_allclose(found.get(), 3 * A @ B)
    with pytest.raises(ct.UnsupportedTypeError, match="Operand 0 was planned with type float64"):
        product(on(cupy, 1, A.astype("f4")))


def test_an_expression_of_shapes_expects_new_arrays(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ct.Handle(0) as handle:
        product = ct.contract_expression("ij,jk->ik", A.shape, B.shape, handle=handle)

        def refuse(*_: Any) -> None:
            raise AssertionError("the short way was not taken")

        monkeypatch.setattr("contract.api.contraction.evaluate", refuse)
        x, y = (cupy.asarray(np.asfortranarray(each)) for each in (A, B))
        np.testing.assert_allclose(product(x, y).get(), A @ B)
