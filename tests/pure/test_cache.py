"""The plan cache in memory: a model beside it, and many threads."""

import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidValueError
from contract.session import plan_cache as cache_module
from contract.session.plan_cache import MOST_REQUESTS, PlanCache


class Value:
    """Something with an identity."""


def test_the_least_recently_used_line_goes() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    a, b, c = Value(), Value(), Value()
    assert cache.put("a", a) is a
    assert cache.put("b", b) is b
    assert cache.get("a") is a
    cache.put("c", c)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (a, c)
    assert astuple(cache.statistics) == (3, 0, 3, 1, 2, 2, 0)
    cache.resize(1)
    assert cache.items() == [("c", c)]
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize("lines", [-1, 2.0, "4", None])
def test_the_number_of_lines_is_an_integer(lines: object) -> None:
    cache: PlanCache[Value] = PlanCache(2)
    with pytest.raises(InvalidValueError, match=str(lines)):
        cache.resize(lines)  # type: ignore[arg-type]


def test_no_lines_keep_nothing() -> None:
    cache: PlanCache[Value] = PlanCache(0)
    value = Value()
    assert cache.put("a", value) is value
    cache.remember(value, "request", "call")
    assert cache.get("a") is None
    assert cache.find("request") is None


def test_the_value_that_came_first_stays() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    first, second = Value(), Value()
    cache.put("a", first)
    assert cache.put("a", second) is first
    assert cache.get("a") is first


def test_a_request_lives_as_long_as_its_line() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    a, b, c = Value(), Value(), Value()
    cache.put("a", a)
    cache.put("b", b)
    cache.remember(a, "as written", "call")
    assert cache.find("as written") == "call"  # now "b" is the least recently used
    cache.put("c", c)
    assert cache.find("as written") == "call"
    cache.put("d", Value())
    cache.put("e", Value())
    assert cache.find("as written") is None
    cache.remember(a, "as written", "call")
    assert cache.find("as written") is None


def test_a_line_has_a_bounded_number_of_requests() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    a = Value()
    cache.put("a", a)
    for number in range(MOST_REQUESTS + 2):
        cache.remember(a, number, number)
    found = [cache.find(number) for number in range(MOST_REQUESTS + 2)]
    assert found == [None, None, *range(2, MOST_REQUESTS + 2)]


def test_what_replaces_a_value_forgets_its_requests() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    old, new, gone = Value(), Value(), Value()
    cache.put("a", old)
    cache.remember(old, "request", "old call")
    cache.replace(old, new)
    assert cache.get("a") is new
    assert cache.find("request") is None
    cache.replace(gone, old)
    assert cache.items() == [("a", new)]


@given(
    st.integers(0, 4), st.lists(st.tuples(st.sampled_from("gpr"), st.integers(0, 7)), max_size=60)
)
def test_it_behaves_like_a_list_in_order_of_use(lines: int, work: list[tuple[str, int]]) -> None:
    cache: PlanCache[Value] = PlanCache(lines)
    model: OrderedDict[int, Value] = OrderedDict()
    hits = misses = evictions = 0
    for what, key in work:
        if what == "r":
            cache.resize(key % 5)
            lines = key % 5
        elif what == "g" or key in model:
            assert cache.get(key) is model.get(key)
            hits += key in model
            if key in model:
                model.move_to_end(key)
        else:
            model[key] = cache.put(key, Value())
            misses += 1
        while len(model) > lines:
            model.popitem(last=False)
            evictions += 1
        assert cache.items() == list(model.items())
    assert astuple(cache.statistics) == (hits, 0, misses, evictions, len(model), lines, 0)


@given(
    st.integers(0, 9), st.lists(st.tuples(st.sampled_from("gpr"), st.integers(0, 7)), max_size=60)
)
def test_lines_go_until_the_others_are_within_the_bytes(
    most: int, work: list[tuple[str, int]]
) -> None:
    cache: PlanCache[tuple[int]] = PlanCache(5, most, size_of=lambda value: value[0])
    model: OrderedDict[int, tuple[int]] = OrderedDict()
    for what, key in work:
        if what == "r":
            cache.resize(5, key)
            most = key
        elif what == "g" or key in model:
            assert cache.get(key) is model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            model[key] = cache.put(key, (key,))
        while len(model) > 5 or sum(size for (size,) in model.values()) > most:
            model.popitem(last=False)
        assert cache.items() == list(model.items())
        assert cache.statistics.bytes == sum(size for (size,) in model.values())


def test_requests_count_as_bytes_of_their_line() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    a, b = Value(), Value()
    cache.put("a", a)
    sizes = []
    for number in range(MOST_REQUESTS + 2):
        cache.remember(a, ("request", number), number)
        sizes.append(cache.statistics.bytes)
    assert sizes == [(at + 1) * sizes[0] for at in range(MOST_REQUESTS)] + 2 * sizes[-1:]
    cache.replace(a, b)
    assert cache.statistics.bytes == 0
    cache.remember(b, "x", 1)
    cache.clear()
    assert cache.statistics.bytes == 0


def test_an_eviction_does_not_look_at_every_line() -> None:
    """Of so many, each would take a millisecond and more."""
    looked: list[int] = []

    class Looking(dict[Any, Any]):
        def values(self) -> Any:
            looked.append(len(self))
            return super().values()

    cache: PlanCache[Value] = PlanCache(1000)
    cache._keys = Looking()
    for number in range(5000):
        cache.put(number, Value())
    assert len(cache) == 1000
    assert len(looked) <= 5


class CallingBack:
    """A key in whose hash a handler of signals happens to make a call."""

    def __init__(self, handler: Callable[[], None]) -> None:
        self.handler = handler

    def __hash__(self) -> int:
        self.handler()
        return id(self)


def test_a_handler_may_call_in_the_midst_of_a_change() -> None:
    cache: PlanCache[Value] = PlanCache(2)
    called: list[int] = []

    def handler() -> None:
        if len(called) < 5:
            called.append(len(called))
            value = cache.put(f"inner {len(called)}", Value())
            cache.remember(value, "request", "call")

    def work() -> None:
        for _ in range(3):
            key, value = CallingBack(handler), Value()
            assert cache.put(key, value) is value
            cache.remember(value, CallingBack(handler), "call")
            cache.replace(value, Value())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive(), "a handler waits for its own thread"
    assert len(called) == 5
    assert len(cache) == 2
    for key in "abc":
        cache.put(key, Value())
    assert [key for key, _ in cache.items()] == ["b", "c"]


class BrokenOff(BaseException):
    """What a handler of signals raises."""


@contextmanager
def handler_raising(at: int) -> Iterator[None]:
    """A time in which the ``at``-th line of the cache that runs does not begin."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != cache_module.__file__:
            return None
        lines += event == "line"
        if lines == at:
            sys.settrace(None)
            raise BrokenOff
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except BrokenOff:
        pass
    finally:
        sys.settrace(before)


def change(cache: PlanCache[tuple[str, int]]) -> None:
    """Of every kind; two lines go."""
    cache.put("b", ("b", 1))
    value = cache.put("c", ("c", 0))
    for number in range(MOST_REQUESTS + 1):
        cache.remember(value, f"request c{number}", value)
    cache.replace(value, ("c", 1))
    cache.put("d", ("d", 0))
    cache.resize(1)
    cache.resize(2)


def test_a_change_that_is_broken_off_leaves_a_cache_that_works() -> None:
    """At each of its lines in turn: what is found is right, and nothing stays for ever."""
    for at in range(1, 260):
        cache: PlanCache[tuple[str, int]] = PlanCache(2, size_of=lambda value: 7)
        for key in "ab":
            cache.remember(cache.put(key, (key, 0)), f"request {key}", (key, 0))
        with handler_raising(at):
            change(cache)
        for key in "abcd":
            for found in (cache.get(key), cache.find(f"request {key}")):
                assert found is None or found[0] == key
        cache.resize(2)
        for number in range(4):
            value = cache.put(f"new {number}", (f"new {number}", 0))
            cache.remember(value, f"request {number}", value)
            assert cache.find(f"request {number}") is value
        assert [key for key, _ in cache.items()] == ["new 2", "new 3"]
        assert cache.statistics.bytes >= sum(line.bytes for line in cache._keys.values())
        assert len(cache._lines) == len(cache._requests) == 2


def test_many_threads_look_up_insert_replace_and_resize() -> None:
    """A value is only ever found under its own key, a call only with its own request."""
    cache: PlanCache[tuple[int, object]] = PlanCache(4)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(2000):
            key = chosen.randrange(12)
            value = cache.get(key) or cache.put(key, (key, object()))
            assert value[0] == key
            cache.remember(value, ("request", key), value)
            found = cache.find(("request", key))
            assert found is None or found[0] == key
            if chosen.random() < 0.1:
                cache.replace(value, (key, object()))
            if chosen.random() < 0.05:
                cache.resize(chosen.randrange(1, 6))

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    cache.resize(0)
    assert len(cache) == 0
    assert not cache._requests
    assert not cache._keys
