"""Threads that share compiled work without a lock, and watch for more of it for a while.

To wake a thread takes some 50 us where its core sleeps, as long as many a product, and to wait for
Python's lock may take as much. One that has had a part therefore stays where it is, out of Python,
awake for a moment: whoever has the next work writes it to the thread's seat. The parts are taken
one by one, the caller's own among them, so nobody waits for a thread that has not begun.

Threads write to the memory of the caller, who must not leave before them, whatever a handler of
signals raises: to take work back and to wait for them is one call of compiled code.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from time import perf_counter, sleep, time_ns
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

from contract.errors import ExecutionError
from contract.host.compiled.functions.tables import call_address, load, store
from contract.host.compiled.functions.tools import Code, FromPython, called, compiled
from contract.host.compiled.functions.vector_ir import WORD, Word, Writer, emitted
from contract.host.resources.views import Array
from contract.host.resources.workers import FORKED, Workers
from contract.support.forks import renew_in_children

__all__ = ["PART_ARGUMENTS", "Team", "team"]

# What the function of a part takes, integers all: the address of its arguments, begin, end, lane.
PART_ARGUMENTS = 4

WATCH = 100e-6  # seconds for which a thread watches its seat,
DOZE = 50_000_000  # and nanoseconds for which it then waits to be called before it leaves
STINT = 100_000_000  # nanoseconds after which it leaves though there is work,
WORKS = 100  # or so many works where there is no clock
SECOND = 1_000_000_000
SLICE = 30_000_000  # after which a caller looks whether there are signals
WAY = 10_000_000  # nanoseconds that a thread takes at most from its call to its seat
LOOKS = 1000  # how often it is looked at to find out how long that takes
PATIENCE = 1 << 16  # looks at a thread that still works, before its core is offered to others
# A seat, on lines of its own: what its thread does, the work it has and the lane for that, what
# the thread does if that is taken back, whether a thread sits there, and until when one is said to
# be on its way; further on a time, and what the system needs to let the thread wait.
STATE, WORK, LANE, OTHERWISE, TAKEN, COMING = range(6)
TIME, MUTEX, CONDITION = 16, 32, 64
SEAT = 96
# EMPTY: nobody serves there; DOZING: its thread waits to be called; WATCHING: it is awake; CLAIMED:
# by a caller, who is about to write what; GIVEN: there is work; WORKING: it is being done.
EMPTY, DOZING, WATCHING, CLAIMED, GIVEN, WORKING = range(6)
LINE = 16  # integers: two lines of the cache, which some processors fetch together
DONE, LEFT = 0, -1  # of a work: nobody has a part of it any more, or somebody may
# Work: the next part, the number of parts (0 where the rest is not wanted any more), what they are
# parts of, the function, its arguments.
NEXT, PARTS, TOTAL, FUNCTION, ARGUMENTS = range(5)


# --- what several threads read and write ------------------------------------------------------


def _place(write: Writer, table: Any, at: Any) -> Any:
    return write.builder.gep(write.pointer(table, WORD), [at])


@emitted
def _seen(write: Writer, table: Word, at: Word) -> Word:
    """Entry ``at`` of a table, with all that was written before it."""
    return write.builder.load_atomic(_place(write, table, at), "acquire", 8)


@emitted
def _show(write: Writer, table: Word, at: Word, value: Word) -> None:
    """Write entry ``at`` of a table, after all that was written before."""
    write.builder.store_atomic(value, _place(write, table, at), "release", 8)


@emitted
def _changed(write: Writer, table: Word, at: Word, old: Word, new: Word) -> Word:
    """Whether entry ``at`` was ``old`` and is ``new`` now: of several threads one succeeds."""
    place, builder = _place(write, table, at), write.builder
    found = builder.cmpxchg(place, old, new, "acq_rel", "acquire")
    return builder.zext(builder.extract_value(found, 1), WORD)


@emitted
def _counted(write: Writer, table: Word, at: Word) -> Word:
    """Entry ``at``, which is one more afterwards."""
    return write.builder.atomic_rmw("add", _place(write, table, at), WORD(1), "acq_rel")


@emitted
def _pause(write: Writer) -> None:
    """Let the core do something else for a moment, where it can."""
    if binding.get_default_triple().startswith("x86"):
        write.call("llvm.x86.sse2.pause", ir.VoidType(), [])


@emitted
def _clock(write: Writer, function: Word) -> Word:
    """Nanoseconds, from the system's function at an address."""
    builder = write.builder
    kind = ir.FunctionType(ir.IntType(32), [WORD, WORD.as_pointer()])
    time = cgutils.alloca_once(builder, WORD, size=2)  # type: ignore[no-untyped-call]
    builder.call(write.pointer(function, kind), [WORD(0), time])
    seconds, rest = (builder.load(builder.gep(time, [WORD(at)])) for at in range(2))
    return builder.add(builder.mul(seconds, WORD(SECOND)), rest)


# --- the threads ------------------------------------------------------------------------------


@compiled
def _work(work: int, lane: int, system: int) -> bool:
    """One part after the other until all are taken; False if the caller's time is over before."""
    total, function = load(work, TOTAL), load(work, FUNCTION)
    arguments, end = work + 8 * ARGUMENTS, 0
    while True:
        part, parts = _counted(work, NEXT), _seen(work, PARTS)
        if part >= parts:
            return True
        first, last = total * part // parts, total * (part + 1) // parts
        call_address(function, (arguments, first, last, lane))
        if lane == 0 and system != 0 and part + 1 < parts:
            now = _clock(load(system, CLOCK))
            end = now + SLICE if end == 0 else end
            if now >= end:
                return False


@called
def _serve(seat: int, looks: int, system: int) -> None:
    """A thread at its seat: it works when it is given work, and leaves when there was none.

    After a while it leaves though there was, for its process may want to end.
    """
    if not _changed(seat, TAKEN, 0, 1):
        return
    store(seat, COMING, 0)
    _changed(seat, STATE, EMPTY, WATCHING)
    end = _clock(load(system, CLOCK)) + STINT if system != 0 else 0
    left, works = looks, 0
    while True:
        state = _seen(seat, STATE)
        if state == GIVEN and _changed(seat, STATE, GIVEN, WORKING):
            _work(load(seat, WORK), load(seat, LANE), system)
            works += 1
            late = _clock(load(system, CLOCK)) > end if system != 0 else works == WORKS
            _show(seat, WORK, 0)
            if late:
                _show(seat, STATE, EMPTY)
                _show(seat, TAKEN, 0)
                return
            _show(seat, STATE, WATCHING)
            left = looks
        elif state == EMPTY:
            _show(seat, TAKEN, 0)
            return
        elif left <= 0 and _changed(seat, STATE, WATCHING, DOZING):
            if system != 0:
                _doze(seat, system)
            _changed(seat, STATE, DOZING, EMPTY)
            left = looks
        left -= 1
        _pause()


@compiled
def _doze(seat: int, system: int) -> None:
    """Wait until somebody has called, for DOZE at most."""
    time, mutex, condition = seat + 8 * TIME, seat + 8 * MUTEX, seat + 8 * CONDITION
    end = _clock(load(system, CLOCK)) + DOZE
    store(time, 0, end // SECOND)
    store(time, 1, end % SECOND)
    call_address(load(system, LOCK), (mutex,))
    if _seen(seat, STATE) == DOZING:
        call_address(load(system, WAIT), (condition, mutex, time))
    call_address(load(system, UNLOCK), (mutex,))


@compiled
def _call(seat: int, system: int) -> None:
    """Wake a thread that dozes, or is about to."""
    call_address(load(system, LOCK), (seat + 8 * MUTEX,))
    call_address(load(system, SIGNAL), (seat + 8 * CONDITION,))
    call_address(load(system, UNLOCK), (seat + 8 * MUTEX,))


@called
def _dismiss(seats: int, count: int, system: int) -> None:
    """Send the threads away that have nothing to do."""
    for at in range(count):
        seat = seats + 8 * SEAT * at
        if not _changed(seat, STATE, WATCHING, EMPTY) and _changed(seat, STATE, DOZING, EMPTY):
            _call(seat, system)


@compiled
def _give(seats: int, count: int, wanted: int, work: int, system: int, wakes: bool) -> int:
    """Give work to threads that are awake, then to others if ``wakes``; how many are to be called.

    No more than ``wanted`` threads get it.
    """
    given = called = 0
    for awake in (True, False):
        for at in range(count if awake or wakes else 0):
            seat = seats + 8 * SEAT * at
            before = _seen(seat, STATE)
            suits = before == WATCHING if awake else before in (DOZING, EMPTY)
            if given == wanted or not suits or not _changed(seat, STATE, before, CLAIMED):
                continue
            given += 1
            store(seat, LANE, given)
            store(seat, OTHERWISE, WATCHING if before == DOZING else before)
            if before == EMPTY:
                called += 0 if _is_coming(seat, system) else 1
            _show(seat, WORK, work)
            _show(seat, STATE, GIVEN)
            if before == DOZING:
                _call(seat, system)
    return called


@compiled
def _is_coming(seat: int, system: int) -> bool:
    """Whether a thread is on its way to the seat."""
    coming: int = load(seat, COMING)
    return system != 0 and coming != 0 and coming > _clock(load(system, CLOCK))


@compiled
def _finish(seats: int, count: int, work: int) -> bool:
    """Take back what no thread has begun; whether nobody works any more."""
    looks = PATIENCE
    for at in range(count):
        seat = seats + 8 * SEAT * at
        if _seen(seat, WORK) == work and _changed(seat, STATE, GIVEN, CLAIMED):
            _show(seat, WORK, 0)
            _show(seat, STATE, load(seat, OTHERWISE))
        while _seen(seat, WORK) == work:
            if looks <= 0:
                return False
            looks -= 1
            _pause()
    return True


@called
def _begin(seats: int, count: int, wanted: int, work: Array, system: int, wakes: bool) -> int:
    """The whole work: DONE, or LEFT; or it is only given, for so many threads are to be called."""
    address: int = work.ctypes.data
    called = _give(seats, count, wanted, address, system, wakes)
    if called > 0:
        return called
    return DONE if _work(address, 0, system) and _finish(seats, count, address) else LEFT


@called
def _lead(seats: int, count: int, work: Array, system: int) -> int:
    """The caller's parts, for a time, and what is left."""
    address: int = work.ctypes.data
    return DONE if _work(address, 0, system) and _finish(seats, count, address) else LEFT


@called
def _stop(seats: int, count: int, work: Array, system: int) -> None:
    """No further part; when this returns nobody works any more."""
    address: int = work.ctypes.data
    _show(address, PARTS, 0)
    while not _finish(seats, count, address):
        if system != 0:  # a thread that still works may be waiting for this core
            call_address(load(system, YIELD), (0,))


# What the system has to let threads wait: the clock, then what locks, waits, calls and unlocks, and
# what offers the core to others.
CLOCK, LOCK, WAIT, SIGNAL, UNLOCK, YIELD = range(6)
_NAMES = (
    "clock_gettime",
    "pthread_mutex_lock",
    "pthread_cond_timedwait",
    "pthread_cond_signal",
    "pthread_mutex_unlock",
    "sched_yield",
)


def _functions() -> Array:
    """The addresses of these functions; none on a system without them."""
    try:
        library = ctypes.CDLL(None)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _NAMES]
    except (AttributeError, OSError, TypeError):
        found = []
    return np.array(found, np.int64)


def _prepare(seat: Array) -> None:
    """Make the mutex and the condition of a seat."""
    library = ctypes.CDLL(None)
    library.pthread_mutex_init(ctypes.c_void_p(seat[MUTEX:].ctypes.data), None)
    library.pthread_cond_init(ctypes.c_void_p(seat[CONDITION:].ctypes.data), None)


class Team:
    """The threads of ``workers`` for compiled work; usable from many threads at once."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._count = workers.threads - 1
        seats = self._count + 1  # and one to measure with
        memory = np.zeros((seats + 1) * SEAT, np.int64)
        skipped = -(memory.ctypes.data // 8) % LINE
        self._seats = memory[skipped:][: seats * SEAT].reshape(-1, SEAT)
        self._first: int = self._seats.ctypes.data
        self._functions = _functions()
        self._system: int = self._functions.ctypes.data if self._functions.size else 0
        self._forks = 0  # how many lie between this process and the one that made the team
        self.renew()
        self._looks = self._looks_for(WATCH) if self._count else 0
        self._compile()
        workers.make_room = self._dismiss
        renew_in_children(self)

    def renew(self) -> None:
        """Nobody sits anywhere."""
        self._forks += 1
        self._seats[...] = 0
        for seat in self._seats if self._system else ():
            _prepare(seat)

    def run(
        self, function: int, arguments: Sequence[int], total: int, parts: int, wakes: bool = True
    ) -> None:
        """function(arguments, begin, end, lane) for parts of range(total), each on one thread.

        A part takes some ten milliseconds at most, for no signal is seen meanwhile.
        The function is given by its address, as the arguments' table is to it. Those that run at
        the same time have different lanes: 0 is the caller's, others are below the number of
        threads and of parts. With ``wakes`` threads that sleep take part; the rest does if awake.
        """
        alone = parts == 1 or self._count == 0 or self.workers.is_inside()
        wanted = 0 if alone else min(self.workers.now(), parts) - 1
        count = self._count if wanted else 0
        work = np.array([0, parts, total, function, *arguments], np.int64)
        forks = self._forks
        if wanted:
            self.workers.keep_apart()
        try:
            state = _begin(self._first, count, wanted, work, self._system, wakes)
            if state > 0:
                self._wake(work)
            while state != DONE:  # Python looks for signals here, and a thread may want this core
                self.workers.check()
                if self._forks != forks:
                    raise ExecutionError(FORKED)
                state = _lead(self._first, count, work, self._system)
                sleep(0)
        except BaseException:
            _stop(self._first, count, work, self._system)
            raise

    def _compile(self) -> None:
        """Whatever a call may need, even if a handler of signals breaks it off."""
        nothing = np.zeros(ARGUMENTS, np.int64)
        _begin(self._first, 0, 0, nothing, self._system, False)
        _lead(self._first, 0, nothing, self._system)
        _stop(self._first, 0, nothing, self._system)
        self._dismiss()

    def _wake(self, work: Array) -> None:
        """A thread for each seat that has this work and no thread yet."""
        seats, now = self._seats[: self._count], time_ns()
        is_empty = (seats[:, WORK] == work.ctypes.data) & (seats[:, OTHERWISE] == EMPTY)
        for at in np.flatnonzero(is_empty & (seats[:, COMING] < now)):
            if self.workers.start(partial(self._sit, int(at))):
                seats[at, COMING] = now + WAY

    def _sit(self, at: int) -> None:
        _serve(self._first + 8 * SEAT * at, self._looks, self._system)

    def _dismiss(self) -> None:
        _dismiss(self._first, self._count, self._system)

    def _looks_for(self, seconds: float) -> int:
        """How often a thread looks at its seat in so many seconds."""
        spent = []
        for _ in range(3):
            begin = perf_counter()
            _serve(self._first, LOOKS, 0)
            spent.append(perf_counter() - begin)
        return int(LOOKS * seconds / min(spent))


def team() -> Code:
    """What Python calls of all this."""
    word, work = types.intp, types.int64[::1]
    return FromPython(
        (
            (_begin, (word, word, word, work, word, types.boolean)),
            (_lead, (word, word, work, word)),
            (_stop, (word, word, work, word)),
            (_serve, (word, word, word)),
            (_dismiss, (word, word, word)),
        )
    )
