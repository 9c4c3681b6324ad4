"""python -m bench.machine: the card, its clocks, and the versions of all that is measured with."""

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "torch", "opt_einsum", "ml_dtypes", "pytest")
TOOLS = ("nvcc", "g++", "ncu", "compute-sanitizer")
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.limit"


def main() -> int:
    """Print them; the exit status is that of nvidia-smi."""
    print(f"Python {sys.version}")
    for name in PACKAGES:
        try:
            print(f"{name} {version(name)}")
        except PackageNotFoundError:
            print(f"{name} is not here")
    for tool in TOOLS:
        print(f"{tool}: {shutil.which(tool)}")
    return subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"]).returncode


if __name__ == "__main__":
    sys.exit(main())
