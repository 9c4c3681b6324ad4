"""Amounts of memory as they are written."""

from typing import Any

import pytest

import contract as ct
from contract.support.memory_size import memory_amount, memory_bytes

WRITTEN = {
    "0": 0,
    "1000000": 1000000,
    "12B": 12,
    "1.5GiB": 3 << 29,
    "2 kB": 2000,
    "2K": 2000,
    "3MB": 3000000,
    "1TiB": 1 << 40,
}


@pytest.mark.parametrize("text", WRITTEN)
def test_sizes(text: str) -> None:
    assert memory_bytes("limit", text, lambda: 7) == WRITTEN[text]


def test_a_share_of_what_is_available() -> None:
    assert memory_bytes("limit", "100%", lambda: 1 << 30) == 1 << 30
    assert memory_bytes("limit", "12.5 %", lambda: 1 << 30) == 1 << 27
    with pytest.raises(ct.InvalidValueError, match=r"limit is '80%'.*does not say"):
        memory_bytes("limit", "80%", lambda: None)


@pytest.mark.parametrize("value", ["", "-5", "1.5XiB", "much", "%", "5 GB of it", -1, 1.5, None])
def test_what_is_no_size(value: Any) -> None:
    with pytest.raises(ct.InvalidValueError, match="limit is a number of bytes") as caught:
        memory_amount("limit", value)
    assert repr(value) in str(caught.value)


def test_limits_of_a_preference() -> None:
    preference = ct.PlanPreference(memory_limit="2kB", workspace_limit="1KiB")
    assert (preference.memory_limit, preference.workspace_limit) == (2000, 1024)
    with pytest.raises(ct.InvalidValueError, match="'80%'"):
        ct.PlanPreference(memory_limit="80%")
