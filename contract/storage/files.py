"""What all files have in common that the library keeps for the user: JSON, one for each device."""

import hashlib
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from contract.errors import CacheFileError, ContractError
from contract.machines.machine import Identity
from contract.storage.codec import encoded

__all__ = [
    "MOST_BYTES",
    "PRIVATE",
    "bytes_of",
    "device_path",
    "dumped",
    "hashed",
    "named",
    "parsed",
    "require_room",
]

MOST_BYTES = 64 << 20  # of a file; 512 large plans take some 8 MiB
PRIVATE = 0o600  # what was computed is the user's own business


def device_path(directory: Path, kind: str, identity: Identity) -> Path:
    """The file of this kind in ``directory`` that belongs to one device."""
    name = "".join(each if each.isalnum() else "-" for each in identity.device)
    return directory / f"{kind}-{name}-{hashed(dumped(identity, Identity))[:8]}.json"


def dumped(value: Any, kind: Any) -> str:
    """The value as compact JSON."""
    return json.dumps(encoded(value, kind), separators=(",", ":"))


def hashed(text: str) -> str:
    """A digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_of(path: Path) -> bytes:
    """A regular file of bounded size; a pipe would make its reader wait."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CacheFileError("this is not a regular file.")
    with path.open("rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    require_room(len(data))
    return data


def parsed(data: bytes | str) -> Any:
    """The JSON value of a text; CacheFileError for anything else."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CacheFileError(f"damaged: this is not JSON: {error!s:.80}.") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def require_room(size: int) -> None:
    """CacheFileError for a file of more bytes than one may have."""
    if size > MOST_BYTES:
        raise CacheFileError(f"a file here has at most {MOST_BYTES} bytes: this has {size}.")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Any refusal as a CacheFileError that begins with the file."""
    try:
        yield
    except CacheFileError as error:
        raise CacheFileError(f"{path}: {error}") from error
    except ContractError as error:
        raise CacheFileError(f"{path}: damaged: {error}") from error
    except OSError as error:
        raise CacheFileError(f"{path}: {error.strerror or error}.") from error
