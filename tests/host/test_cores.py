"""As many threads as the user and the system say: counted, never timed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import contract as ct
from contract.host.resources import blas_threads, limits, workers
from contract.host.resources.blas_threads import BlasThreads
from contract.host.resources.limits import free_memory, usable_cores
from contract.host.resources.workers import Workers
from tests.host.test_threads import put_for_matmul

# Every kind of call that threads share; then the threads of the handle, those of ours that were
# started, and all of the process.
CALLS = """
import json, os, sys, time
import numpy as np
from contract.host.resources import limits
if sys.argv[1] != "0":
    limits._cores = lambda: int(sys.argv[1])
import contract as ct
from contract.session.handle import default_handle
rng = np.random.default_rng(0)
x, y = rng.random((64, 64, 64)), rng.random((64, 64, 64))
for algo in (ct.Algo.GETT, ct.Algo.TTGT):
    ct.contract("abc,cbd->da", x, y, preference=ct.PlanPreference(algo=algo))
ct.contract("bij,bjk->bik", x, y)
ct.permute("abc->cba", rng.random((256, 64, 64)))
ct.reduce("abc->b", rng.random((256, 64, 64)))
workers = default_handle().executor.workers
ours = workers._crew._threads if workers._crew else []
end, tasks = time.monotonic() + 10, None
while os.path.isdir("/proc/self/task") and tasks != 1 + len(ours) and time.monotonic() < end:
    tasks = len(os.listdir("/proc/self/task"))  # one that has ended may be there for a moment
print(json.dumps([workers.threads, len(ours), tasks]))
"""


def called(cores: int, before: Callable[[], None] | None = None, **variables: str) -> list[int]:
    """What CALLS print where the machine has so many cores; 0: as many as it has."""
    names = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CONTRACT_NUM_THREADS"}
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(cores)],
        env={**kept, **variables},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_the_variables_of_blas_are_ours(name: str) -> None:
    threads, ours, tasks = called(3, **{name: "1"})
    assert (threads, ours) == (1, 0)
    assert tasks in (1, None)


def test_our_own_variable_wins() -> None:
    threads, ours, _ = called(2, OMP_NUM_THREADS="1", CONTRACT_NUM_THREADS="3")
    assert threads == 3
    assert ours > 0


def test_no_more_threads_than_cores() -> None:
    assert called(2, OMP_NUM_THREADS="9")[0] == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are bound to no cores")
def test_a_process_bound_to_one_core_has_one_thread() -> None:
    """As SLURM and MPI bind theirs; BLAS counts such cores itself."""
    core = min(os.sched_getaffinity(0))
    assert called(0, lambda: os.sched_setaffinity(0, {core}))[:2] == [1, 0]


def test_a_variable_that_is_set_later_is_for_others() -> None:
    """As dask sets it for the processes that it starts; BLAS has been loaded before."""
    found = blas_threads.blas_threads()
    with threadpool_limits(3, "blas"):
        assert Workers(None, 1).threads == usable_cores()
    with threadpool_limits(1, "blas"):
        assert Workers(None, 1).threads == 1
        assert Workers(None, 0).threads == usable_cores()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "_ask", lambda: blas_threads.MANY)  # a library that does not tell
        assert Workers(None, 1).threads == 1


# --- while it runs --------------------------------------------------------------------------------


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """The threads of a machine with three cores."""
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    with threadpool_limits(3, "blas"):
        found = Workers()
        yield found
        found.close()


def those_who_take_part(found: Workers, count: int) -> set[int]:
    """The threads that have parts, where ``count`` of them meet."""
    meeting, seen = threading.Barrier(count, timeout=60), set[int]()

    def part(number: int) -> None:
        seen.add(threading.get_ident())
        if number < count:
            meeting.wait()

    found.map(part, [(number,) for number in range(12)])
    return seen


@pytest.mark.parametrize("limit", [3, 1, 2])
def test_no_more_threads_than_blas_may_use(three: Workers, limit: int) -> None:
    with threadpool_limits(limit, "blas"):
        assert len(those_who_take_part(three, limit)) == limit
        assert len(three.split(12, 1)) == 3  # work is split all the same
    assert len(those_who_take_part(three, 3)) == 3


def test_what_we_tell_blas_ourselves_limits_nobody(three: Workers) -> None:
    assert blas_threads.blas_threads().alone(three.now) == 3
    with threadpool_limits(2, "blas"):
        assert blas_threads.blas_threads().alone(three.now) == 2
    assert three.now() == 3


def test_a_number_of_threads_that_is_chosen_is_kept() -> None:
    found = Workers(3)
    with threadpool_limits(1, "blas"):
        assert len(those_who_take_part(found, 3)) == 3
    found.close()


def test_compiled_work_is_limited_too(three: Workers) -> None:
    pytest.importorskip("numba")
    from contract.host.compiled.functions.team import Team
    from tests.host.test_team import PATIENT, Visits, until

    team = Team(three)

    def lanes() -> set[int]:
        visits = Visits(3, PATIENT)
        visits.run(team, 3)
        return visits.check(3)

    until(lambda: lanes() == {0, 1, 2})
    with threadpool_limits(2, "blas"):
        assert all(lanes() <= {0, 1} for _ in range(10))
    with threadpool_limits(1, "blas"):
        assert all(lanes() == {0} for _ in range(10))
    until(lambda: lanes() == {0, 1, 2})


# --- control groups -------------------------------------------------------------------------------


class System:
    """A root folder with files of the kernel."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def mount(self, own: str, mounts: str) -> None:
        self.write("proc/self/cgroup", own)
        self.write("proc/self/mountinfo", mounts)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(limits, "_cores", lambda: 8)
    found = System(tmp_path)
    found.write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   4000 kB\n")
    return found


MOUNT = "31 23 0:27 {top} {folder} rw,nosuid shared:9 - {kind} {options}\n"
NEW = MOUNT.format(
    top="/", folder="/sys/fs/cgroup", kind="cgroup2", options="cgroup2 rw,nsdelegate"
)


def old(name: str, top: str) -> str:
    """The mount of controllers of the first version."""
    return MOUNT.format(
        top=top, folder=f"/sys/fs/cgroup/{name}", kind="cgroup", options=f"cgroup rw,{name}"
    )


def test_without_groups(system: System) -> None:
    assert usable_cores(system.root) == 8
    assert free_memory(system.root) == 4000 * 1024


def test_without_files_of_the_kernel(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) >= 1
    assert free_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("outer", "inner", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("max 100000", "100000 100000", 1),
        ("250000 100000", "max 100000", 3),
        ("50000 100000", "400000 100000", 1),
        ("9900000 100000", "max 100000", 8),
    ],
)
def test_quotas_of_groups(system: System, outer: str, inner: str, cores: int) -> None:
    system.mount("0::/slice/job\n", NEW)
    system.write("sys/fs/cgroup/slice/cpu.max", outer)
    system.write("sys/fs/cgroup/slice/job/cpu.max", inner)
    assert usable_cores(system.root) == cores


def test_memory_of_groups(system: System) -> None:
    system.mount("0::/slice/job\n", NEW)
    for group, most, used in (("slice", "1000000", "600000"), ("slice/job", "max", "5")):
        system.write(f"sys/fs/cgroup/{group}/memory.max", most)
        system.write(f"sys/fs/cgroup/{group}/memory.current", used)
    assert free_memory(system.root) == 400000
    system.write("sys/fs/cgroup/slice/memory.stat", "anon 100\ninactive_file 50000\n")
    assert free_memory(system.root) == 450000
    system.write("sys/fs/cgroup/slice/memory.current", "1200000")
    assert free_memory(system.root) == 0


@pytest.mark.parametrize("top", ["/", "/docker/ab", "/elsewhere"])
def test_groups_of_the_first_version(system: System, top: str) -> None:
    """In a container its own group is mounted, whose path outside is told."""
    system.mount(
        "9:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/\n",
        old("memory", top) + old("cpu,cpuacct", top),
    )
    inner = "docker/ab/" if top == "/" else ""
    cpu, memory = (f"sys/fs/cgroup/{name}/{inner}" for name in ("cpu,cpuacct", "memory"))
    system.write(f"{cpu}cpu.cfs_quota_us", "150000")
    system.write(f"{cpu}cpu.cfs_period_us", "100000")
    system.write(f"{memory}memory.limit_in_bytes", "3000000")
    system.write(f"{memory}memory.usage_in_bytes", "1000000")
    system.write(f"{memory}memory.stat", "total_inactive_file 1000\n")
    assert usable_cores(system.root) == 2
    assert free_memory(system.root) == 2001000
    system.write(f"{cpu}cpu.cfs_quota_us", "-1")
    assert usable_cores(system.root) == 8


def test_blas_keeps_a_quota_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts cores, whatever the time that the system gives them."""
    monkeypatch.setattr(blas_threads, "usable_cores", lambda: 2)
    with threadpool_limits(3, "blas"):
        found = BlasThreads()
        assert found.exceeds
        assert found.guarded(lambda: found._ask())() == 1
        assert found.threads == 3
    with threadpool_limits(2, "blas"):
        assert not BlasThreads().exceeds


def test_lone_products_are_ours_where_blas_exceeds_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    found, settings, matmul = blas_threads.blas_threads(), set[int](), np.matmul
    monkeypatch.setattr(found, "exceeds", True)

    def asked(*given: Any, **named: Any) -> Any:
        settings.add(found._ask())
        return matmul(*given, **named)

    put_for_matmul(asked, monkeypatch)
    x = np.random.default_rng(0).standard_normal((300, 300))
    with ct.Handle(threads=2, kernels="numpy") as handle:  # whose products are BLAS's
        product = ct.contract("ij,jk->ik", x, x, handle=handle)
    np.testing.assert_allclose(product, x @ x, rtol=1e-9, atol=1e-9)
    assert settings == {1}


# --- forks ----------------------------------------------------------------------------------------

FORK = """
import contract.support.forks
import logging, os, threading

class Importing:
    def acquire(self):
        thread = threading.Thread(target=logging.getLogger, args=("another",), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "logging is locked already"
    def release(self):
        pass

contract.support.forks.hold_during_forks(Importing())
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
def test_a_fork_waits_for_threads_that_log() -> None:
    """As one that imports Numba does: the lock of logging is taken after ours."""
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, timeout=100, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
