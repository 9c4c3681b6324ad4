"""What a device was asked to do, for tests that forbid some of it."""

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch, or a product of cuBLAS, which alone has what comes last.

    ``workspace`` is an address and a number of bytes: zeros where cuBLAS used what it has.
    """

    name: str
    stream: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    parameter_bytes: int = 0
    workspace: tuple[int, int] = (0, 0)
    math_mode: int = 0


@dataclass(slots=True)
class Counters:
    """Calls since the start or the last ``reset``.

    ``synchronisations`` are waits of the host for a device, those inside of copies included.
    ``elementwise`` are kernels of CuPy itself: fills, conversions and copies of strided arrays.
    ``ranges`` of NVTX are paths of names, ``contract/multiply`` for one inside of another;
    ``open_ranges`` have not been closed.
    """

    synchronisations: int = 0
    to_device: int = 0
    to_host: int = 0
    device_copies: int = 0
    elementwise: int = 0
    driver_allocations: int = 0
    driver_frees: int = 0
    compilations: int = 0
    graph_launches: int = 0
    ranges: list[str] = field(default_factory=list)
    open_ranges: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    products: list[Launch] = field(default_factory=list)

    def reset(self) -> None:
        """Count from zero again."""
        fresh = Counters()
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))
