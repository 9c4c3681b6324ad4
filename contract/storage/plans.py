"""Plans in files: written whole or not at all, read only where they were made.

A file is a JSON object: ``schema``, the number of this format; ``maker``, the library's version, a
fingerprint of the sources that plan, and the device; ``records``, each a text of JSON under the
digest of its operation and preference, the oldest first; and ``checksum`` of these. The texts are
decoded one by one when they are asked for. They hold what was decided, no steps: the plan is made
again from that, so a file can ask for a slow plan, whoever wrote it, and never for a wrong one.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from contract.descriptors.operations import OperationDescriptor, PlanPreference
from contract.errors import CacheFileError, InvalidValueError
from contract.machines.machine import Identity
from contract.plan.steps import Plan
from contract.storage.codec import decoded, encoded
from contract.storage.files import (
    MOST_BYTES,
    PRIVATE,
    bytes_of,
    device_path,
    dumped,
    hashed,
    named,
    parsed,
    require_room,
)
from contract.support import sources
from contract.support.atomic_file import UNFINISHED, replacing
from contract.support.forks import reentrant_lock
from contract.support.version import VERSION

try:
    import fcntl
except ImportError:  # not a POSIX system: savers at the same moment may lose a record, no file
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "PlanStore",
    "Record",
    "identity_of",
    "plan_digest",
    "plan_files_in",
    "read_plans",
    "store_path",
    "write_plans",
]

SCHEMA = 1
MOST_RECORDS = 512  # of a store
MOST_STORED = MOST_BYTES // 2  # of their texts: a quotation mark takes two bytes in the file
PLANNING = ("support", "descriptors", "machines", "plan", "planner")  # what a plan depends on
LOCK = ".lock"  # in the folder of a store; it stays

Texts = dict[str, str]  # records by digest, the oldest first


@dataclass(frozen=True, slots=True)
class Record:
    """How the plan is made for ``operation`` where ``preference`` is asked for.

    ``decided`` is the preference that makes it: with its path, rank and limit of workspace.
    ``digest`` is that of the plan; ``seconds`` are those of the plan if they were measured.
    """

    operation: OperationDescriptor
    preference: PlanPreference
    decided: PlanPreference
    digest: str
    seconds: float | None = None

    @classmethod
    def of(cls, preference: PlanPreference, plan: Plan, seconds: float | None = None) -> "Record":
        """The record of a plan that was asked for with ``preference``."""
        return cls(plan.operation, preference, plan.preference, plan_digest(plan), seconds)


@dataclass(frozen=True, slots=True)
class _Maker:
    """What wrote a file: only the same may read it."""

    version: str
    planning: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class _Key:
    """What a record is found by."""

    operation: OperationDescriptor
    preference: PlanPreference


def write_plans(path: Path, records: Iterable[Record], identity: Identity) -> None:
    """Write a file of ``records``; the old one stays until the new one is complete.

    InvalidValueError for a preference that cannot be stored, CacheFileError for what the system
    refuses.
    """
    texts = {_digest(each.operation, each.preference): _text(each) for each in records}
    _write(path, texts, identity)


def read_plans(path: Path, identity: Identity) -> tuple[Record, ...]:
    """The records of a file; CacheFileError says why a file is refused."""
    texts = _read(path, identity)
    return tuple(_record(path, digest, text) for digest, text in texts.items())


def identity_of(path: Path) -> Identity:
    """The device whose plans a file has, whatever else made it."""
    return _maker(path, _document(path)).identity


def store_path(directory: Path, identity: Identity) -> Path:
    """The file in ``directory`` for the plans of one device."""
    return device_path(directory, "plans", identity)


def plan_files_in(directory: Path) -> list[Path]:
    """Every file that ``store_path`` may have named, and what is left of interrupted writing."""
    return sorted((*directory.glob("plans-*.json"), *directory.glob(UNFINISHED)))


class PlanStore:
    """The plans of one device on disk, for all processes of a user; usable from many threads.

    The file is read once, at the first question. ``refused`` says why it, or a record of it, was
    not used; such a file is replaced at the next ``save``. ``found`` and ``missed`` count answers.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.refused: str | None = None
        self.found = 0
        self.missed = 0
        self._lock = reentrant_lock()
        self._read: Texts | None = None
        self._added: Texts = {}

    def find(self, operation: OperationDescriptor, preference: PlanPreference) -> Record | None:
        """The record of an operation planned with a preference; None if there can be none."""
        try:
            digest = _digest(operation, preference)
        except InvalidValueError:
            return self._counted(None)
        with self._lock:
            text = self._text_of(digest)
        return self._counted(None if text is None else self._decoded(digest, text))

    def add(self, record: Record) -> bool:
        """Keep a record, to be written by the next ``save``; whether it can be stored."""
        try:
            digest, text = _digest(record.operation, record.preference), _text(record)
        except InvalidValueError:
            return False
        with self._lock:
            if self._text_of(digest) != text:
                self._added[digest] = text
        return True

    def save(self) -> None:
        """Write what was added beside what other processes wrote; the newest 512 stay.

        Nothing is written where nothing was added. CacheFileError for what the system refuses.
        """
        with self._lock:
            if not self._added:
                return
            with _alone(self.path):
                merged = _newest(self._current(), self._added)
                _write(self.path, merged, self.identity)
            self._read, self._added = merged, {}

    def clear(self) -> None:
        """Forget every record, on disk too."""
        with self._lock, named(self.path):
            self.path.unlink(missing_ok=True)
            self._read, self._added = {}, {}

    def _text_of(self, digest: str) -> str | None:
        if self._read is None:
            self._read = self._current()
        return self._added.get(digest) or self._read.get(digest)

    def _current(self) -> Texts:
        """What the file has; nothing where there is none, or it is refused."""
        try:
            return _read(self.path, self.identity)
        except CacheFileError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                self.refused = str(error)
            return {}

    def _decoded(self, digest: str, text: str) -> Record | None:
        try:
            return _record(self.path, digest, text)
        except CacheFileError as error:
            self.refused = str(error)
            return None

    def _counted(self, record: Record | None) -> Record | None:
        with self._lock:
            self.found += record is not None
            self.missed += record is None
        return record


def _newest(others: Texts, added: Texts) -> Texts:
    """The records added last, and as many of the others as there is room for."""
    merged = {key: text for key, text in others.items() if key not in added} | added
    newest = list(reversed(merged.items()))[:MOST_RECORDS]
    room = takewhile(lambda size: size <= MOST_STORED, accumulate(len(text) for _, text in newest))
    return dict(reversed([each for each, _ in zip(newest, room, strict=False)]))


# --- records ----------------------------------------------------------------------------------


def plan_digest(plan: Plan) -> str:
    """A digest of all that is run: two plans with the same one give the same bits."""
    return hashed(repr((plan.slots, plan.steps, plan.offsets)))


def _digest(operation: OperationDescriptor, preference: PlanPreference) -> str:
    return hashed(dumped(_Key(operation, preference), _Key))


def _text(record: Record) -> str:
    return dumped(record, Record)


def _record(path: Path, digest: str, text: str) -> Record:
    """The record of a text that stands under ``digest``."""
    with named(path):
        record: Record = decoded(parsed(text), Record)
        own = _digest(record.operation, record.preference)
        if own != digest:
            raise CacheFileError(f"A record stands under its digest: {own} under {digest}.")
    return record


# --- the file ---------------------------------------------------------------------------------


@cache
def _maker_here(identity: Identity) -> _Maker:
    return _Maker(VERSION, sources.digest(PLANNING), identity)


def _checksum(texts: Texts) -> str:
    found = hashlib.sha256()
    for digest, text in texts.items():
        found.update(f"{digest}\n{text}\n".encode())
    return found.hexdigest()


def _write(path: Path, texts: Texts, identity: Identity) -> None:
    document = {
        "schema": SCHEMA,
        "maker": encoded(_maker_here(identity), _Maker),
        "checksum": _checksum(texts),
        "records": texts,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    with named(path), replacing(path, PRIVATE) as stream:
        require_room(len(data))
        stream.write(data)


def _read(path: Path, identity: Identity) -> Texts:
    """The texts of a file that was made here and is whole."""
    document = _document(path)
    maker, here = _maker(path, document), _maker_here(identity)
    for what, theirs, ours in (
        ("library version", maker.version, here.version),
        ("planner", maker.planning, here.planning),
        ("device", maker.identity, here.identity),
    ):
        if theirs != ours:
            raise CacheFileError(f"{path}: plans of another {what}: {theirs}, this is {ours}.")
    records = document["records"]
    if type(records) is not dict or not all(_is_ascii(x) for pair in records.items() for x in pair):
        raise CacheFileError(f"{path}: damaged: records are texts of ASCII by their digests.")
    own = _checksum(records)
    if own != document["checksum"]:
        raise CacheFileError(
            f"{path}: damaged: the checksum of the records is {own}, the file has "
            f"{document['checksum']!r:.80}."
        )
    return records


def _is_ascii(value: Any) -> bool:
    return type(value) is str and value.isascii()


def _document(path: Path) -> dict[str, Any]:
    """The parts of a file of this format."""
    with named(path):
        document = parsed(bytes_of(path))
        if type(document) is not dict or "schema" not in document:
            raise CacheFileError("damaged: a file of plans is an object with a schema.")
        schema: int = decoded(document["schema"], int)
        if schema != SCHEMA:
            raise CacheFileError(f"a file of another schema: {schema}, this is {SCHEMA}.")
        if document.keys() != {"schema", "maker", "checksum", "records"}:
            raise CacheFileError(
                f"damaged: it has schema, maker, checksum and records: {list(document)!r:.80}."
            )
    return document


def _maker(path: Path, document: Mapping[str, Any]) -> _Maker:
    with named(path):
        maker: _Maker = decoded(document["maker"], _Maker)
    return maker


# --- the system -------------------------------------------------------------------------------


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time in the file's folder, where the system has locks for files.

    The folder is made where it is missing, for the user alone.
    """
    with ExitStack() as held:
        with named(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fcntl is not None:
                lock = held.enter_context((path.parent / LOCK).open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
