"""Workers of joblib share the cores: each has as many threads as it is told."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("joblib")

PROGRAM = """
import json
from joblib import Parallel, delayed, parallel_config

def call(number):
    import numpy as np
    import contract as ct
    from contract.host.resources import limits
    limits._cores = lambda: 3
    with ct.Handle() as handle:
        ct.permute("abc->cba", np.ones((256, 64, 64)), handle=handle)
        ct.contract("bij,bjk->bik", np.ones((16, 90, 90)), np.ones((16, 90, 90)), handle=handle)
        workers = handle.executor.workers
        return workers.threads, len(workers._crew._threads) if workers._crew else 0

if __name__ == "__main__":
    found = []
    for inner in (1, 2):
        with parallel_config("loky", inner_max_num_threads=inner):
            found.append(Parallel(n_jobs=2)(delayed(call)(at) for at in range(2)))
    print(json.dumps(found))
"""


def test_workers_have_the_threads_that_joblib_gives_them() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout.splitlines()[-1])
    assert one == [[1, 0]] * 2
    assert [threads for threads, _ in two] == [2, 2]
