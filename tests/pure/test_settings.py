"""The environment table, and the plan cache."""

import pytest

from contract.cache import PlanCache
from contract.config import VARIABLES, Settings
from contract.errors import InvalidValueError


def test_settings_have_the_defaults_of_the_table() -> None:
    table = {variable.name: variable.default for variable in VARIABLES}
    assert Settings.from_environment({}) == Settings() == Settings.from_environment(table)


def test_settings_read_every_variable() -> None:
    given = {
        "CUTENSOR_DISABLE_PLAN_CACHE": "1",
        "CONTRACT_NUM_THREADS": "3",
        "CONTRACT_HOST_KERNELS": "numpy",
        "CONTRACT_HOPPER": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    assert set(given) == {variable.name for variable in VARIABLES}
    assert Settings.from_environment(given) == Settings(False, 3, "numpy", True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUTENSOR_DISABLE_PLAN_CACHE", "yes"),
        ("CONTRACT_NUM_THREADS", "-1"),
        ("CONTRACT_NUM_THREADS", "99999"),
        ("CONTRACT_HOST_KERNELS", "cuda"),
        ("CONTRACT_HOPPER", "2"),
    ],
)
def test_invalid_values_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name}.*'{value}'"):
        Settings.from_environment({name: value})


def test_the_least_recently_used_line_goes() -> None:
    cache: PlanCache[int] = PlanCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (1, 3)
    assert (cache.hits, cache.misses, cache.evictions) == (3, 1, 1)
    cache.resize(1)
    assert len(cache) == 1
    cache.clear()
    assert len(cache) == 0
    for lines in (-1, -5):
        with pytest.raises(InvalidValueError, match=str(lines)):
            cache.resize(lines)


def test_no_lines_keep_nothing() -> None:
    cache: PlanCache[int] = PlanCache(0)
    cache.put("a", 1)
    assert cache.get("a") is None


def test_a_line_put_again_is_the_most_recently_used() -> None:
    cache: PlanCache[int] = PlanCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (3, None, 4)
