"""Two runs of a suite compared: by ratios to the peers that both have."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.compare import main


def run(ratios: dict[str, dict[str, float | None]], **other: Any) -> dict[str, Any]:
    rows = [{"case": case, "ratios": each, "failed": {}} for case, each in ratios.items()]
    given = {"suite": "tccg", "mode": "fixed", "dtype": "float64", "compute": None}
    surroundings = {"device": "host", "machine": {"cores": 2}, "versions": {"numpy": "2.1"}}
    return {**given, **surroundings, "rows": rows, **other}


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def compare(old: Any, new: Any, *options: str) -> tuple[int, str]:
        paths = [tmp_path / "old.json", tmp_path / "new.json"]
        for path, each in zip(paths, (old, new), strict=True):
            path.write_text(json.dumps(each))
        status = main([*map(str, paths), *options])
        return status, capsys.readouterr().out

    return compare


OLD = run({"1 ab": {"numpy": 2.0, "torch": 1.5}, "2 cd": {"numpy": 1.0}, "3 ef": {"numpy": 3.0}})


def test_the_same_run_has_lost_nothing(compared: Any) -> None:
    status, text = compared(OLD, OLD)
    assert status == 0
    assert "geometric mean of the changes 1.00x over 3 cases, 0 of them lost" in text


def test_only_common_peers_count(compared: Any) -> None:
    """Against numpy and torch 1.5 was the ratio to the best; numpy alone has 2.0 and 2.2."""
    new = run({"1 ab": {"numpy": 2.2, "jax": 0.1}, "2 cd": {"numpy": 1.0}, "3 ef": {"numpy": 3.0}})
    status, text = compared(OLD, new)
    assert status == 0
    (line,) = (line for line in text.splitlines() if line.startswith("1 ab"))
    assert line.split()[2:] == ["2.00x", "2.20x", "1.10x"]


def test_a_loss_is_marked_and_is_the_exit_status(compared: Any) -> None:
    new = run({"1 ab": {"numpy": 2.0, "torch": 1.2}, "2 cd": {"numpy": 1.3}})
    status, text = compared(OLD, new)
    assert status == 1
    (line,) = (line for line in text.splitlines() if "slower" in line)
    assert line.split() == ["1", "ab", "1.50x", "1.20x", "0.80x", "slower"]
    assert "1 cases of the old run are not in the new one" in text
    assert compared(OLD, new, "--tolerance", "0.3")[0] == 0


def test_a_failure_is_a_loss_however_fast(compared: Any) -> None:
    new = run({"2 cd": {"numpy": None}})
    new["rows"][0]["failed"] = {"contract": "wrong by 3e-2"}
    status, text = compared(OLD, new)
    assert status == 1
    assert "FAILED: wrong by 3e-2" in text


def test_runs_of_different_things_are_not_compared(compared: Any) -> None:
    status, text = compared(OLD, run({}, dtype="float32"))
    assert status == 2
    assert "different dtype: float64, float32" in text


def test_other_versions_are_said(compared: Any) -> None:
    _, text = compared(OLD, {**OLD, "versions": {"numpy": "2.2"}})
    assert "versions: numpy: 2.1 -> 2.2" in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": [1]}', '{"rows": [{"case": "a"}]}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(SystemExit, match="is no result"):
        main([str(path), str(path)])
