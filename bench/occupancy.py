"""How many blocks of a kernel a multiprocessor holds."""

from math import ceil

from bench.nvrtc import Usage
from contract.machines.gpu import Architecture

# Of a multiprocessor, by the tables of compute capabilities in the CUDA programming guide.
REGISTERS = 65536
REGISTER_UNIT = 256  # that a warp takes at once
RESERVED = 1 << 10  # bytes of shared memory that a block takes beside its own, from 8.0 on
MOST = {  # warps and blocks
    60: (64, 32),
    80: (64, 32),
    86: (48, 16),
    89: (48, 24),
    90: (64, 32),
    100: (64, 32),
    120: (48, 24),
}


def resident(usage: Usage, threads: int, shared: int, architecture: Architecture) -> int:
    """Blocks that a multiprocessor holds at once."""
    warps = ceil(threads / 32)
    most_warps, most_blocks = MOST[architecture.capability]
    registers = ceil(32 * usage.registers / REGISTER_UNIT) * REGISTER_UNIT * warps
    reserved = RESERVED if architecture.capability >= 80 else 0
    return min(
        most_blocks,
        most_warps // warps,
        REGISTERS // registers,
        architecture.shared // max(usage.shared + shared + reserved, 1),
    )
