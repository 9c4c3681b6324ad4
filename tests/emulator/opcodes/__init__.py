"""The PTX instructions the emulator knows, one module per family; importing it fills the table."""

from . import arithmetic, asynchronous, carry, control, convert, hopper, logic, memory, tensor, warp
from .table import find

__all__ = [
    "arithmetic",
    "asynchronous",
    "carry",
    "control",
    "convert",
    "find",
    "hopper",
    "logic",
    "memory",
    "tensor",
    "warp",
]
