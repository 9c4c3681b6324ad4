"""The environment table."""

from pathlib import Path

import platformdirs
import pytest

from contract.errors import InvalidValueError
from contract.support.config import VARIABLES, LogSettings, Settings


def test_settings_have_the_defaults_of_the_table() -> None:
    table = {variable.name: variable.default for variable in VARIABLES}
    assert Settings.from_environment({}) == Settings() == Settings.from_environment(table)


def test_settings_read_every_variable() -> None:
    given = {
        "CUTENSOR_DISABLE_PLAN_CACHE": "1",
        "CONTRACT_CACHE_LINES": "9",
        "CONTRACT_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "5",
        "OMP_NUM_THREADS": "7",
        "CONTRACT_HOST_KERNELS": "numpy",
        "CONTRACT_COMPILE": "wait",
        "CONTRACT_HOPPER": "0",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CONTRACT_CACHE": "/var/plans",
        "CONTRACT_CALIBRATION": "/var/model",
        "CONTRACT_CHECK": "1",
        "CUTENSOR_LOG_LEVEL": "2",
        "CUTENSOR_LOG_MASK": "16",
        "CUTENSOR_LOG_FILE": "log.txt",
        "CUTENSOR_NVTX_LEVEL": "1",
    }
    assert set(given) == {variable.name for variable in VARIABLES}
    logging = LogSettings(3, "log.txt", True)
    paths = Path("/var/plans"), "/var/model"
    expected = Settings(False, 9, 3, 5, "numpy", "wait", False, False, *paths, True, logging)
    assert Settings.from_environment(given) == expected


def test_plans_are_kept_where_the_system_keeps_the_users_caches() -> None:
    found = Settings.from_environment({"CONTRACT_CACHE": "1"}).cache_directory
    assert found == platformdirs.user_cache_path("contract")
    assert Settings.from_environment({"CONTRACT_CACHE": ""}).cache_directory is None


def test_the_fitted_model_is_looked_for_where_the_system_keeps_the_users_caches() -> None:
    def found(value: str) -> Path | None:
        return Settings.from_environment({"CONTRACT_CALIBRATION": value}).calibration_directory()

    assert found("") == found("1") == platformdirs.user_cache_path("contract")
    assert found("0") is None
    assert found("/var/model") == Path("/var/model")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUTENSOR_DISABLE_PLAN_CACHE", "yes"),
        ("CONTRACT_CACHE_LINES", "-1"),
        ("CONTRACT_CACHE_LINES", "many"),
        ("CONTRACT_NUM_THREADS", "-1"),
        ("CONTRACT_NUM_THREADS", "99999"),
        ("CONTRACT_HOST_KERNELS", "cuda"),
        ("CONTRACT_COMPILE", "never"),
        ("CONTRACT_HOPPER", "2"),
        ("CONTRACT_CHECK", "on"),
    ],
)
def test_invalid_values_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name}.*'{value}'"):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": " 4,2 "}, 4),
        ({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "0"}, 3),
        ({"OMP_NUM_THREADS": "many"}, 0),
        ({"OMP_NUM_THREADS": "-1"}, 0),
    ],
)
def test_threads_of_other_libraries_are_never_refused(values: dict[str, str], most: int) -> None:
    assert Settings.from_environment(values).most_threads == most
