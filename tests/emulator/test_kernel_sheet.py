"""The sheet of kernels: what the compiler reports, how many blocks fit, which bytes tiles move."""

import json
import re
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import kernels
from bench.kernels import WORKS, Traffic, Work, resident, sheet_of
from bench.nvrtc import NvrtcError, Usage
from contract import Algo, PlanPreference
from contract.device.kernels.lowering import lower
from contract.machines.gpu import ARCHITECTURES, architecture_of
from contract.planner.planner import make_plan

from . import nvrtc

HOPPER = architecture_of(90)
PRODUCT = Work("product", "mk,kn->mn", {"m": 3000, "k": 100, "n": 2000}, "float64")


def work(name: str) -> Work:
    """The work of a name."""
    return next(each for each in WORKS if each.name == name)


def test_the_sheet_is_printed_and_written(tmp_path: Path, capsys) -> None:
    target = tmp_path / "out.json"
    arguments = ["--cases", "tiny-float32,permute-float32", "--json", str(target)]
    assert command.main(["kernels", "--capability", "80", *arguments]) == 0
    printed = capsys.readouterr().out
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["capability"] == 80
    assert [sheet["name"] for sheet in found["sheets"]] == ["tiny-float32", "permute-float32"]
    for sheet in found["sheets"]:
        (launch,) = sheet["launches"]
        assert 0 < launch["usage"]["registers"] <= 255
        assert 0 < launch["warps"] <= 64
        assert sheet["seconds"] > sheet["bound"] > 0
        assert re.search(rf"{sheet['name']} .* {launch['usage']['registers']} ", printed)
    moved = found["sheets"][1]["traffic"]
    assert moved == {"read": 4 << 27, "written": 4 << 27, "least": 8 << 27}


def test_the_compilers_report_is_that_of_ptxas() -> None:
    tiny = work("tiny-float32")
    (launch,) = sheet_of(tiny, HOPPER, compiles=True).launches
    plan = make_plan(tiny.operation, PlanPreference(algo=Algo.GETT), HOPPER)
    (call,) = lower(plan, plan.steps[0], HOPPER)
    report = nvrtc.compile_cubin(call.source, "sm_90", ["-ftz=true"]).log
    assert launch.usage.shared > 0
    assert f"Used {launch.usage.registers} registers" in report
    assert f"{launch.usage.spills} bytes spill stores" in report
    assert f"{launch.usage.shared} bytes smem" in report


def test_without_a_compiler_the_columns_say_so(monkeypatch, tmp_path: Path, capsys) -> None:
    def absent() -> None:
        raise NvrtcError("no NVRTC")

    monkeypatch.setattr(kernels, "library", absent)
    target = tmp_path / "out.json"
    assert command.main(["kernels", "--json", str(target)]) == 0
    assert "are not known: no NVRTC" in capsys.readouterr().out
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["compiler"] == "no NVRTC"
    assert len(found["sheets"]) == len(WORKS)
    for sheet in found["sheets"]:
        assert all(each["usage"] is None for each in sheet["launches"])
        assert 0 < sheet["fraction_of_bound"] < 1
        read_and_written = sheet["traffic"]["read"] + sheet["traffic"]["written"]
        assert read_and_written >= sheet["traffic"]["least"]
    entries = {sheet["name"]: sheet["launches"][0]["entry"] for sheet in found["sheets"]}
    assert entries["square-bfloat16"] == "hopper"
    assert entries["square-float32"] == "multiply"


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.capability)
def test_no_architecture_is_expected_to_be_quicker_than_its_bound(architecture) -> None:
    for each in WORKS:
        fraction = sheet_of(each, architecture, compiles=False).fraction
        assert 0 < fraction < 1, each.name


def test_a_kernel_that_does_not_compile_fails(monkeypatch, capsys) -> None:
    def refuse(source: str, architecture: str) -> Usage:
        raise NvrtcError("expected a semicolon")

    monkeypatch.setattr(kernels, "usage", refuse)
    assert command.main(["kernels", "--cases", "reduce-float32"]) == 1
    assert "FAILED reduce-float32: expected a semicolon" in capsys.readouterr().out


def test_blocks_that_fit() -> None:
    """By registers, shared memory, warps and blocks, by hand."""
    assert resident(Usage(128, 0, 0), 256, 0, HOPPER) == 2  # 128 * 256 of 65536
    assert resident(Usage(129, 0, 0), 256, 0, HOPPER) == 1  # a warp takes 136 * 32
    assert resident(Usage(32, 0, 0), 256, 0, HOPPER) == 8  # 64 warps
    assert resident(Usage(32, 0, 0), 256, 0, architecture_of(86)) == 6  # 48 warps
    assert resident(Usage(16, 0, 0), 32, 0, HOPPER) == 32
    assert resident(Usage(32, 0, 8 << 10), 128, 68 << 10, HOPPER) == 2  # 77 KB each of 228
    assert resident(Usage(32, 0, 16 << 10), 64, 0, architecture_of(60)) == 4


def test_traffic_is_what_tiles_read() -> None:
    """Element by element: each tile reads its rows of A and columns of B, within the tensors."""
    found = sheet_of(PRODUCT, HOPPER, compiles=False)
    m, k, n = (PRODUCT.extents[label] for label in "mkn")
    side_m, side_n = map(int, found.tile.split("x"))
    read = 0
    for row in range(0, m, side_m):
        for column in range(0, n, side_n):
            rows, columns = len(range(m)[row:][:side_m]), len(range(n)[column:][:side_n])
            read += 8 * k * (rows + columns)
    assert len(found.launches) == 1
    assert side_m > side_n
    assert found.traffic == Traffic(read, 8 * m * n, 8 * (m * k + k * n + m * n))
    assert found.flops == 2 * m * n * k
    assert found.intensity == pytest.approx(found.flops / (read + 8 * m * n))


def test_parts_of_sums_are_written_and_read() -> None:
    found = sheet_of(work("long-k-float32"), HOPPER, compiles=False)
    assert [each.entry for each in found.launches] == ["multiply", "add_parts"]
    parts = found.launches[0].grid
    assert found.traffic.written == 4 * 64 * 64 * (1 + parts)


def test_unknown_work_is_refused() -> None:
    with pytest.raises(SystemExit, match="Unknown cases nowhere"):
        command.main(["kernels", "--cases", "nowhere"])
