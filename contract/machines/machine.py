"""A machine that plans are made for: a processor or a GPU, and what tells it from others."""

from dataclasses import dataclass

from contract.machines.cpu import Cpu
from contract.machines.gpu import Architecture

__all__ = ["Identity", "Machine"]

Machine = Cpu | Architecture


@dataclass(frozen=True, slots=True)
class Identity:
    """What something was measured on, or planned for: one kind of device.

    ``capability`` is the compute capability or the instructions of a processor, with anything a
    setting forbids of it; ``units`` are multiprocessors or cores.
    """

    device: str
    capability: str
    units: int

    def __str__(self) -> str:
        return f"{self.device} ({self.capability}, {self.units} units)"
