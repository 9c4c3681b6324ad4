"""Plans that outlive a handle: in a file of the caller's, or in the folder that a setting names."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.cache import Statistics
from contract.run.executor import footprint
from tests.devices import Device

TUNED = ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL, incremental_count=2)


@contextmanager
def handle_of(device: Device) -> Iterator[ct.Handle]:
    with ct.Handle(None if device.name == "host" else 0) as handle:
        yield handle


def results(device: Device, handle: ct.Handle, **options: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    x, y = (np.asfortranarray(rng.standard_normal((9, 9)).astype("f4")) for _ in range(2))
    a, b = device.array(x), device.array(y)
    found = [
        ct.contract("ij,kj->ik", a, b, handle=handle, **options),
        ct.permute("ij->ji", a, alpha=2, handle=handle),
        ct.reduce("ij->j", b, handle=handle),
    ]
    return [device.numpy(each) for each in found]


def test_a_file_of_plans_saves_planning(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    with handle_of(device) as first:
        wanted = results(device, first)
        assert first.write_plans(path) == 3
        assert first.plans.statistics.misses == 3
    with handle_of(device) as second:
        assert second.read_plans(path) == 3
        found = results(device, second)
        counted = second.plans.statistics
        assert counted == Statistics(0, 3, 0, 0, 3, counted.capacity, counted.bytes)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_tuning_found_is_kept(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    with handle_of(device) as first:
        for _ in range(10):
            results(device, first, preference=TUNED)
        (chosen,) = [each for (_, preference), each in first.plans.items() if preference == TUNED]
        assert chosen.settled
        first.write_plans(path)
    with handle_of(device) as second:
        second.read_plans(path)
        results(device, second, preference=TUNED)
        (restored,) = [
            each for (_, preference), each in second.plans.items() if preference == TUNED
        ]
        assert restored.plan == chosen.plan
        assert restored.measured == chosen.measured
        assert second.plans.statistics.misses == 0


def test_a_plan_that_is_being_tuned_is_not_kept(device: Device, tmp_path: Path) -> None:
    with handle_of(device) as handle:
        results(device, handle, preference=replace(TUNED, incremental_count=4))
        assert handle.write_plans(tmp_path / "plans.json") == 2


def test_a_refused_file_leaves_the_cache_as_it_was(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    with handle_of(device) as handle:
        wanted = results(device, handle)
        handle.write_plans(path)
        before = handle.plans.items()
        document = json.loads(path.read_text())
        document["maker"]["identity"]["device"] = "another"
        path.write_text(json.dumps(document))
        with pytest.raises(ct.CacheFileError, match=r"another device.*another.*this is"):
            handle.read_plans(path)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(ct.CacheFileError, match="damaged"):
            handle.read_plans(path)
        with pytest.raises(ct.CacheFileError, match="No such file"):
            handle.read_plans(tmp_path / "nothing")
        assert handle.plans.items() == before
        for one, other in zip(results(device, handle), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


PROGRAM = """
import numpy as np, contract as ct
x = np.ones((30, 40))
for _ in range(2):
    assert ct.contract("ij,kj->ik", x, x)[0, 0] == 40
    assert ct.contract("ij,kj,il->lk", x, x, x).shape == (40, 30)
print(ct.default_handle().plans.statistics)
"""


def in_a_process(folder: str, **variables: str) -> str:
    environment = {"CONTRACT_CACHE": folder, "CONTRACT_CHECK": "1"}
    environment["PYTHONPATH"] = str(Path(ct.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM],
        env={"PATH": "", "HOME": "/nonexistent", **environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_second_process_plans_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "plans")
    assert "hits=2, restored=0, misses=2" in in_a_process(folder)
    assert "hits=2, restored=2, misses=0" in in_a_process(folder)
    assert "hits=2, restored=0, misses=2" in in_a_process("0")
    assert "hits=0, restored=0, misses=4" in in_a_process(folder, CUTENSOR_DISABLE_PLAN_CACHE="1")


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    said = in_a_process(str(occupied))
    assert "hits=2, restored=0, misses=2" in said
    assert said.count("RuntimeWarning: Plans are not kept on disk") == 1


def test_a_limit_holds_for_plans_from_a_file(tmp_path: Path) -> None:
    """A plan that takes more here than where it was made is not taken from there."""
    x = np.ones((300, 300))
    limited = ct.PlanPreference(memory_limit=1 << 30, algo=ct.Algo.GEMM)
    with ct.Handle() as handle:
        ct.contract("ij,jk->ki", x, x, preference=limited, handle=handle)
        handle.write_plans(tmp_path / "plans.json")
    with ct.Handle() as handle:
        handle.read_plans(tmp_path / "plans.json")
        ((key, record),) = handle._kept._read.items()
        needed = footprint(handle.executor, record.plan).total
        tight = replace(limited, memory_limit=needed - 1)
        handle._kept._read = {(key[0], tight): record}
        with pytest.raises(ct.InsufficientWorkspaceError, match=str(needed)):
            ct.contract("ij,jk->ki", x, x, preference=tight, handle=handle)
        assert handle.plans.statistics.restored == 0
