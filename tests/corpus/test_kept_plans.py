"""Plans that outlive a handle: in a file of the caller's, or in the folder that a setting names."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.execution.executor import footprint
from contract.planner import paths as order
from contract.session.plan_cache import Statistics
from contract.storage.plans import _checksum
from tests.devices import Device
from tests.plan_cases import another, changed, numbers

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


RING = "ab,bc,cd,de,ef->af"


def ring(handle: ct.Handle) -> Any:
    x = np.asfortranarray(np.random.default_rng(5).standard_normal((6, 6)))
    return ct.contract(RING, x, x, x, x, x, handle=handle)


def test_the_order_of_products_is_not_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: Any) -> Any:
        raise AssertionError("a path is searched")

    with ct.Handle() as first:
        wanted = ring(first)
        first.write_plans(tmp_path / "plans.json")
    monkeypatch.setattr(order, "_searched", searched)
    with ct.Handle() as second:
        second.read_plans(tmp_path / "plans.json")
        np.testing.assert_array_equal(ring(second), wanted)
    with ct.Handle() as third, pytest.raises(AssertionError, match="a path is searched"):
        ring(third)


def records_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file of plans, and the one record it has."""
    document = json.loads(path.read_text())
    (text,) = document["records"].values()
    return document, json.loads(text)


def write_record(path: Path, document: dict[str, Any], record: dict[str, Any]) -> None:
    """The document with another record, under a checksum that is right."""
    texts = dict.fromkeys(document["records"], json.dumps(record))
    path.write_text(json.dumps(document | {"records": texts, "checksum": _checksum(texts)}))


def test_no_number_in_a_file_makes_a_result_wrong(tmp_path: Path) -> None:
    """Each number of a record is changed in turn, and the checksum is right again."""
    path, rng = tmp_path / "plans.json", Random("numbers")
    with ct.Handle() as first:
        wanted = ring(first)
        first.write_plans(path)
    document, record = records_of(path)
    refused = restored = 0
    for at, number in [*numbers(record), (("digest",), 0)]:
        value = another(number, rng) if at != ("digest",) else "0" * 64
        write_record(path, document, changed(record, at, value))
        with ct.Handle() as handle:
            try:
                handle.read_plans(path)
            except ct.CacheFileError:
                refused += 1
                continue
            np.testing.assert_allclose(ring(handle), wanted, rtol=1e-13)
            restored += handle.plans.statistics.restored
    assert refused > 3  # extents, strides, positions on the path
    assert restored == 1  # jit_mode and the like are names: the count of candidates to tune alone


PROGRAM = f"""
import numpy as np, contract as ct
x = np.ones((30, 30))
for _ in range(2):
    assert ct.contract("ij,kj->ik", x, x)[0, 0] == 30
    assert ct.contract("{RING}", x, x, x, x, x)[0, 0] == 30**4
print(ct.default_handle().plans.statistics)
"""


def in_a_process(folder: str, **variables: str) -> str:
    environment = {"CONTRACT_CACHE": folder, "CONTRACT_CHECK": "1"}
    paths = str(Path(ct.__file__).parents[1]), os.environ.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM],
        env={"PATH": "", "HOME": "/nonexistent", **environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_second_process_searches_no_path(tmp_path: Path) -> None:
    """A product of two is planned at once: no file has it."""
    folder = str(tmp_path / "plans")
    assert "hits=2, restored=0, misses=2" in in_a_process(folder)
    assert "hits=2, restored=1, misses=1" in in_a_process(folder)
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
        ((_, loaded),) = handle.plans.items()
        needed = footprint(handle.executor, loaded.plan).total
        handle.write_plans(tmp_path / "plans.json")
    with ct.Handle() as handle:
        handle.read_plans(tmp_path / "plans.json")
        ((key, record),) = handle._kept._read.items()
        tight = replace(limited, memory_limit=needed - 1)
        handle._kept._read = {(key[0], tight): record}
        with pytest.raises(ct.InsufficientWorkspaceError, match=str(needed)):
            ct.contract("ij,jk->ki", x, x, preference=tight, handle=handle)
        assert handle.plans.statistics.restored == 0
