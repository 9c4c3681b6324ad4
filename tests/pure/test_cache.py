"""The plan cache in memory: a model beside it, and many threads."""

import random
import threading
from collections import OrderedDict
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.cache import MOST_REQUESTS, PlanCache
from contract.errors import InvalidValueError


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
    assert astuple(cache.statistics) == (3, 0, 3, 1, 2, 2)
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
    assert astuple(cache.statistics) == (hits, 0, misses, evictions, len(model), lines)


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
