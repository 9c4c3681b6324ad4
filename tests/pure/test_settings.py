"""The environment table."""

import pytest

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
