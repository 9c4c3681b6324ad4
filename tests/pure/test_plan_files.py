"""Plans in files: whole, private, refused with a reason, shared by processes."""

import json
import multiprocessing
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import contract as ct
from contract.errors import CacheFileError, InvalidValueError
from contract.machines.machine import Identity
from contract.planner.planner import make_plan
from contract.storage import files as cache_files
from contract.storage import plans as plan_files
from contract.storage.plans import (
    PlanStore,
    Record,
    identity_of,
    plan_files_in,
    read_plans,
    store_path,
    write_plans,
)
from contract.support.atomic_file import UNFINISHED, replacing
from tests.plan_cases import MACHINES, another, changed, numbers, operand, operations

HERE = Identity("NVIDIA H200", "9.0", 132)
PREFERENCE = ct.PlanPreference()
# Children of a server that has imported everything: they start at once, and no thread is forked.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["pytest", __name__])


@cache
def records() -> tuple[Record, ...]:
    """A plan for each operation, every other one measured."""
    return tuple(
        Record.of(
            PREFERENCE,
            make_plan(each, PREFERENCE, MACHINES[at % len(MACHINES)]),
            (None, 1.5e-6)[at % 2],
        )
        for at, each in enumerate(operations())
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plans.json"


# --- files ------------------------------------------------------------------------------------


def test_what_is_written_is_read(path: Path) -> None:
    write_plans(path, records(), HERE)
    assert read_plans(path, HERE) == records()
    assert identity_of(path) == HERE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_plans(path, records()[:2], HERE)
    assert read_plans(path, HERE) == records()[:2]
    assert list(path.parent.iterdir()) == [path]


def test_nothing_changes_where_a_plan_cannot_be_stored(path: Path) -> None:
    write_plans(path, records()[:1], HERE)
    wild = replace(records()[1], preference=ct.PlanPreference(path=print))
    with pytest.raises(InvalidValueError, match="print"):
        write_plans(path, [wild], HERE)
    with pytest.raises(CacheFileError, match="No such file"):
        write_plans(path.parent / "none" / "plans.json", records(), HERE)
    assert read_plans(path, HERE) == records()[:1]
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_plans(path, records()[:1], HERE)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CacheFileError, match=r"plans\.json: No space left on device"):
        write_plans(path, records(), HERE)
    assert read_plans(path, HERE) == records()[:1]
    assert list(path.parent.iterdir()) == [path]


# --- refusals -----------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """Why a file is refused; another error, or none, fails the test."""
    with pytest.raises(CacheFileError) as caught:
        read_plans(path, HERE)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_plans_of_another_device_are_refused(path: Path) -> None:
    write_plans(path, records()[:1], HERE)
    for other in (
        replace(HERE, device="Tesla P100"),
        replace(HERE, capability="6.0"),
        replace(HERE, units=56),
    ):
        with pytest.raises(CacheFileError) as caught:
            read_plans(path, other)
        assert f"plans of another device: {HERE}, this is {other}." in str(caught.value)


def whole(path: Path) -> dict[str, Any]:
    write_plans(path, records()[:2], HERE)
    return json.loads(path.read_text())


def summed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a checksum that is right."""
    return document | {"checksum": plan_files._checksum(document["records"])}


def with_first(document: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The document with its first record changed, and the checksum right again."""
    texts = dict(document["records"])
    first = next(iter(texts))
    texts[first] = json.dumps(change(json.loads(texts[first])))
    return summed(document | {"records": texts})


def at_maker(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return document | {"maker": document["maker"] | changes}


LONE = "\ud800"  # the first half of a pair: JSON may have it, no file of text may
LABELS = ("operation", "Contraction", "labels")
FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "schema": (lambda d: d | {"schema": 2}, "another schema: 2, this is 1"),
    "schema of another type": (lambda d: d | {"schema": True}, "an integer .* is meant"),
    "version": (lambda d: at_maker(d, version="9.9"), "another library version: 9.9, this is 0"),
    "planner": (lambda d: at_maker(d, planning="f" * 64), "another planner: ffff"),
    "no maker": (lambda d: d | {"maker": None}, "At the top: a _Maker has the fields"),
    "no planner": (lambda d: at_maker(d, planning=None), r"At \.planning: a text is meant"),
    "units of a text": (
        lambda d: at_maker(d, identity=d["maker"]["identity"] | {"units": "132"}),
        r"At \.identity\.units: an integer",
    ),
    "one part more": (lambda d: d | {"more": 1}, "it has schema, maker, checksum and records"),
    "no records": (lambda d: {"schema": 1}, "it has schema, maker, checksum and records"),
    "a list": (lambda d: [d], "an object with a schema"),
    "records in a list": (lambda d: d | {"records": []}, "records are texts"),
    "records as objects": (lambda d: d | {"records": {"a": {}}}, "records are texts"),
    "checksum": (lambda d: d | {"checksum": "0"}, "the checksum of the records is .*has '0'"),
    "no checksum": (lambda d: d | {"checksum": None}, "the checksum of the records is"),
    "a record of nothing": (lambda d: with_first(d, lambda r: None), "a Record has the fields"),
    "a record of another": (
        lambda d: summed(d | {"records": dict(zip(*reversed_values(d["records"]), strict=True))}),
        "stands under its digest",
    ),
    "a record that is not JSON": (
        lambda d: summed(d | {"records": dict.fromkeys(d["records"], "{")}),
        "this is not JSON",
    ),
    "NaN": (lambda d: with_first(d, lambda r: r | {"seconds": float("nan")}), "NaN is no number"),
    "a huge time": (lambda d: with_first(d, lambda r: r | {"seconds": 10**400}), "one of"),
    "a decision that no preference has": (
        lambda d: with_first(d, lambda r: changed(r, ("decided", "kernel_rank"), -1)),
        "kernel_rank is an integer of 0 or more",
    ),
    "half a character in a version": (
        lambda d: at_maker(d, version=LONE),
        r"At \.version: a text is meant",
    ),
    "half a character in a digest": (lambda d: d | {"records": {LONE: ""}}, "texts of ASCII"),
    "half a character in a record": (lambda d: d | {"records": {"a": LONE}}, "texts of ASCII"),
    "half a character in a label": (
        lambda d: with_first(d, lambda r: changed(r, (*LABELS, 0), LONE)),
        r"labels\[0\]: a text is meant",
    ),
    "no seconds": (lambda d: with_first(d, without_seconds), "a Record has the fields"),
}


def reversed_values(texts: dict[str, str]) -> tuple[list[str], list[str]]:
    return list(texts), list(texts.values())[::-1]


def without_seconds(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "seconds"}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_or_damaged_file_is_refused_with_its_reason(name: str, path: Path) -> None:
    change, reason = FOREIGN[name]
    path.write_text(json.dumps(change(whole(path))))
    with pytest.raises(CacheFileError, match=reason):
        read_plans(path, HERE)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0", b"{", b"null", b"[]", b"1e999", b"NaN", b'"plans"', b"\xff\xfe", b"{}" * 2),
        *(b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000, b"PK\x03\x04", b'{"schema": 1}'),
        *(b'{"schema":' + b"9" * 4000 + b"}", b"\xef\xbb\xbf{}", b"import os\n"),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_file_of_plans_is_refused(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    refusal(path)


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    write_plans(path, records()[:2], HERE)
    data = path.read_bytes()
    for at in range(100):
        path.write_bytes(data[: at * (len(data) - 1) // 99])
        refusal(path)


def test_a_bit_flipped_anywhere_is_refused(path: Path) -> None:
    write_plans(path, records()[:2], HERE)
    data, rng = path.read_bytes(), Random("bits")
    for at in (*range(0, 400, 4), *rng.sample(range(len(data)), 150)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        refusal(path)


def test_a_file_with_a_number_changed_is_refused_or_only_its_record_differs(path: Path) -> None:
    """The checksum is right again, as whoever writes such a file would see to."""
    document, rng = whole(path), Random("numbers")
    first = json.loads(next(iter(document["records"].values())))
    for at, number in numbers(first):
        value = another(number, rng)
        other = with_first(document, lambda r, at=at, value=value: changed(r, at, value))
        path.write_text(json.dumps(other))
        try:
            found = read_plans(path, HERE)
        except CacheFileError:
            continue
        assert found[1:] == records()[1:2]


def test_what_is_not_a_regular_file_is_refused(path: Path) -> None:
    assert "No such file" in refusal(path)
    path.mkdir()
    assert "not a regular file" in refusal(path)
    path.rmdir()
    path.symlink_to(path)
    assert "symbolic links" in refusal(path)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refusal(path)
    path.unlink()
    assert "Not a directory" in refusal_below_a_file(path)


def refusal_below_a_file(path: Path) -> str:
    path.write_bytes(b"")
    return refusal(path / "plans.json")


def test_an_unreadable_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads anything, so that the system's answer is given here."""

    def denied(self: Path, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    write_plans(path, records()[:1], HERE)
    monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in refusal(path)


def test_a_file_that_is_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plans(path, records()[:2], HERE)
    size = path.stat().st_size
    monkeypatch.setattr(cache_files, "MOST_BYTES", size - 1)
    assert f"at most {size - 1} bytes: this has {size}" in refusal(path)
    with pytest.raises(CacheFileError, match="at most"):
        write_plans(path, records(), HERE)


# --- processes ----------------------------------------------------------------------------------


def write_for_ever(path: Path, first: tuple[Record, ...], second: tuple[Record, ...]) -> None:
    while True:
        write_plans(path, first, HERE)
        write_plans(path, second, HERE)


def test_a_process_killed_while_it_writes_leaves_a_whole_file(path: Path) -> None:
    first, second = records()[:1], records()[:6]
    write_plans(path, first, HERE)
    rng = Random("kills")
    for _ in range(20):
        writer = CHILDREN.Process(target=write_for_ever, args=(path, first, second))
        before = path.stat().st_ino
        writer.start()
        while path.stat().st_ino == before:
            time.sleep(0.001)
        time.sleep(rng.random() / 50)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert read_plans(path, HERE) in (first, second)


def save_each(path: Path, some: tuple[Record, ...]) -> None:
    for record in some:
        store = PlanStore(path, HERE)
        assert store.add(record)
        store.save()


def write_slowly(path: Path, begun: Any) -> None:
    with replacing(path) as stream:
        stream.write(b"half")
        stream.flush()
        begun.set()
        time.sleep(60)


def test_what_a_killed_process_leaves_is_removed_and_what_is_written_stays(path: Path) -> None:
    begun = CHILDREN.Event()
    children = [CHILDREN.Process(target=write_slowly, args=(path, begun)) for _ in range(2)]
    for child in children:
        begun.clear()
        child.start()
        assert begun.wait(30)
    unfinished = set(path.parent.glob(UNFINISHED))
    assert len(unfinished) == 2
    children[0].kill()
    children[0].join()
    write_plans(path, records()[:1], HERE)
    (left,) = path.parent.glob(UNFINISHED)
    children[1].kill()
    children[1].join()
    write_plans(path, records()[:1], HERE)
    assert list(path.parent.iterdir()) == [path]
    assert left in unfinished


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_only_regular_files_are_replaced(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(CacheFileError, match=f"{path}: this is not a regular file"):
        write_plans(path, records()[:1], HERE)
    assert stat.S_ISFIFO(path.stat().st_mode)
    link = path.with_name("link")
    link.symlink_to("/dev/null")
    with pytest.raises(CacheFileError, match="not a regular file"):
        write_plans(link, records()[:1], HERE)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_processes_that_save_at_once_lose_nothing(path: Path) -> None:
    count = 12
    assert len(records()) >= count
    savers = [
        CHILDREN.Process(target=save_each, args=(path, records()[at : at + 3]))
        for at in range(0, count, 3)
    ]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()
        assert saver.exitcode == 0
    assert set(read_plans(path, HERE)) == set(records()[:count])


# --- the store ----------------------------------------------------------------------------------


def filled(path: Path, count: int = 3) -> PlanStore:
    store = PlanStore(path, HERE)
    for record in records()[:count]:
        assert store.add(record)
    return store


def test_a_second_store_finds_what_the_first_saved(path: Path) -> None:
    first = filled(path / "below" / "plans.json")
    assert first.find(records()[0].operation, PREFERENCE) == records()[0]
    assert first.refused is None
    first.save()
    second = PlanStore(path / "below" / "plans.json", HERE)
    for record in records()[:3]:
        assert second.find(record.operation, PREFERENCE) == record
    assert second.find(records()[3].operation, PREFERENCE) is None
    assert second.find(records()[0].operation, ct.PlanPreference(kernel_rank=1)) is None
    assert (second.found, second.missed, second.refused) == (3, 2, None)
    assert stat.S_IMODE((path / "below").stat().st_mode) == 0o700


def test_what_cannot_be_stored_is_not(path: Path) -> None:
    store = PlanStore(path, HERE)
    wild = ct.PlanPreference(path=print)
    assert not store.add(replace(records()[0], preference=wild))
    assert store.find(records()[0].operation, wild) is None
    padding = ct.Padding((1,), (1,), Fraction(1, 3))
    operation = ct.ElementwiseOperation(
        (operand("a"),), operand("a", extents={"a": 8}), padding=padding
    )
    assert not store.add(Record.of(PREFERENCE, make_plan(operation)))
    assert store.find(operation, PREFERENCE) is None
    store.save()
    assert not path.exists()


def test_labels_that_no_file_has_are_planned_every_time(path: Path) -> None:
    wild = f"{LONE}b,bc->{LONE}c"
    with ct.Handle(kernels="numpy") as handle:
        ct.contract_expression(wild, (2, 3), (3, 4), handle=handle)
        ct.contract_expression("ab,bc->ac", (2, 3), (3, 4), handle=handle)
        assert handle.write_plans(path) == 1
        store = PlanStore(path, handle.executor.identity)
        for _, loaded in handle.plans.items():
            found = store.find(loaded.plan.operation, PREFERENCE)
            assert (found is None) == (LONE in loaded.plan.labels)
            assert store.add(Record.of(PREFERENCE, loaded.plan)) == (LONE not in loaded.plan.labels)


def test_nothing_is_written_when_nothing_is_new(path: Path) -> None:
    filled(path).save()
    before = path.stat().st_mtime_ns, path.stat().st_ino
    again = filled(path)
    again.save()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    again.add(replace(records()[0], seconds=7.0))
    again.save()
    assert path.stat().st_ino != before[1]
    found = PlanStore(path, HERE).find(records()[0].operation, PREFERENCE)
    assert found is not None
    assert found.seconds == 7.0


def test_the_newest_records_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_files, "MOST_RECORDS", 3)
    filled(path, 3).save()
    store = PlanStore(path, HERE)
    store.add(records()[4])
    store.add(replace(records()[0], seconds=7.0))
    store.save()
    kept = (records()[2], records()[4], replace(records()[0], seconds=7.0))
    assert read_plans(path, HERE) == kept
    sizes = [len(text) for text in json.loads(path.read_text())["records"].values()]
    monkeypatch.setattr(plan_files, "MOST_STORED", sum(sizes[1:]))
    store.add(replace(records()[0], seconds=8.0))
    store.save()
    assert read_plans(path, HERE) == (records()[4], replace(records()[0], seconds=8.0))


@pytest.mark.parametrize(
    "damage", ["not JSON", "another device", "a directory", "one record", "half a character"]
)
def test_a_refused_file_is_set_aside_and_replaced(damage: str, path: Path) -> None:
    wanted = records()[0]
    if damage == "one record":
        document = with_first(whole(path), lambda r: changed(r, ("decided", "kernel_rank"), -1))
        path.write_text(json.dumps(document))
    elif damage == "half a character":
        document = whole(path)
        document["records"] |= {LONE: LONE}
        path.write_text(json.dumps(document))
    elif damage == "another device":
        write_plans(path, records()[:1], replace(HERE, units=1))
    elif damage == "not JSON":
        path.write_text("plans")
    else:
        path.mkdir()
    store = PlanStore(path, HERE)
    assert store.find(wanted.operation, PREFERENCE) is None
    assert store.refused is not None
    assert store.refused.startswith(f"{path}: ")
    store.add(wanted)
    if damage == "a directory":
        with pytest.raises(CacheFileError, match="Is a directory"):
            store.save()
        assert list(path.parent.glob(".contract*")) == []
        return
    store.save()
    assert PlanStore(path, HERE).find(wanted.operation, PREFERENCE) == wanted


def test_cleared_stores_are_empty(path: Path) -> None:
    store = filled(path)
    store.save()
    store.clear()
    assert not path.exists()
    assert store.find(records()[0].operation, PREFERENCE) is None
    store.clear()


def test_threads_share_a_store(path: Path) -> None:
    store = PlanStore(path, HERE)
    failures: list[Exception] = []

    def work(mine: tuple[Record, ...]) -> None:
        try:
            for record in mine:
                store.add(record)
                store.save()
                assert store.find(record.operation, PREFERENCE) == record
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(records()[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(read_plans(path, HERE)) == set(records())
    assert store.found == len(records())


def test_each_device_has_a_file_of_its_own(tmp_path: Path) -> None:
    others = [HERE, replace(HERE, units=16), Identity("../../etc/x y", "", 1)]
    paths = [store_path(tmp_path, each) for each in others]
    assert len(set(paths)) == 3
    for path, identity in zip(paths, others, strict=True):
        assert path.parent == tmp_path
        write_plans(path, (), identity)
    (tmp_path / "other.json").write_text("of somebody else")
    assert plan_files_in(tmp_path) == sorted(paths)


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
