"""The fitted constants of a machine's model in a file that belongs to it."""

from dataclasses import dataclass
from pathlib import Path

from contract.errors import CacheFileError
from contract.machines.constants import RANGE, Fitted, constants, with_constants
from contract.machines.machine import Identity, Machine
from contract.storage.codec import decoded
from contract.storage.files import (
    PRIVATE,
    bytes_of,
    device_path,
    dumped,
    named,
    parsed,
    require_room,
)
from contract.support.atomic_file import replacing
from contract.support.version import VERSION

__all__ = ["calibration_path", "read_calibration", "write_calibration"]


@dataclass(frozen=True, slots=True)
class _Constant:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class _Calibration:
    """What was fitted where, and by which version of the model."""

    version: str
    identity: Identity
    constants: tuple[_Constant, ...]


def calibration_path(directory: Path, identity: Identity) -> Path:
    """The file in ``directory`` for one machine."""
    return device_path(directory, "calibration", identity)


def write_calibration(path: Path, machine: Machine, identity: Identity) -> None:
    """Write the constants of ``machine``; CacheFileError for what the system refuses."""
    found = tuple(_Constant(name, value) for name, value in constants(machine).items())
    data = dumped(_Calibration(VERSION, identity, found), _Calibration).encode()
    with named(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_room(len(data))
        with replacing(path, PRIVATE) as stream:
            stream.write(data)


def read_calibration(path: Path, machine: Fitted, identity: Identity) -> Fitted | None:
    """``machine`` with the constants of the file, None where there is none that may be read.

    CacheFileError for a file of another version or machine, and for a damaged one.
    """
    with named(path):
        try:
            data = bytes_of(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        found: _Calibration = decoded(parsed(data), _Calibration)
        for what, theirs, ours in (
            ("library version", found.version, VERSION),
            ("machine", found.identity, identity),
        ):
            if theirs != ours:
                raise CacheFileError(f"constants of another {what}: {theirs}, this is {ours}.")
        return with_constants(machine, _checked(found, machine))


def _checked(found: _Calibration, machine: Machine) -> dict[str, float]:
    """The constants by name: each of the machine's, within the range of fitted ones."""
    built_in, values = constants(machine), {each.name: each.value for each in found.constants}
    if values.keys() != built_in.keys():
        raise CacheFileError(f"damaged: the constants are {', '.join(built_in)}.")
    for name, value in values.items():
        if not built_in[name] / RANGE <= value <= built_in[name] * RANGE:
            raise CacheFileError(f"damaged: {name} is {value}, built in is {built_in[name]}.")
    return values
