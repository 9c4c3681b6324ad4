"""Plans on disk and compiled code are found by a digest of the sources that they depend on."""

import shutil
from pathlib import Path

import pytest

import contract
from contract.host.compiled.functions.code_folder import WRITERS
from contract.storage.plans import PLANNING
from contract.support.sources import digest
from tests.pure.test_architecture import ROOMS

PACKAGE = Path(contract.__file__).parent


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose files may be changed."""
    made = tmp_path_factory.mktemp("sources") / "contract"
    shutil.copytree(PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__"))
    return made


@pytest.mark.parametrize(
    ("rooms", "changed"),
    [(rooms, room) for rooms in (PLANNING, WRITERS) for room in rooms],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_change_in_any_room_is_another_digest(
    package: Path, rooms: tuple[str, ...], changed: str
) -> None:
    before = digest(rooms, package)
    for source in (package / changed).rglob("*.py"):
        text = source.read_text()
        source.write_text(text + "# another comment\n")
        assert digest(rooms, package) != before, source
        source.write_text(text)
    assert digest(rooms, package) == before


def test_other_rooms_do_not_count(package: Path) -> None:
    before = digest(PLANNING, package), digest(WRITERS, package)
    for room in ("api", "cli", "device", "session"):
        with (package / room / "__init__.py").open("a") as source:
            source.write("# another comment\n")
    assert (digest(PLANNING, package), digest(WRITERS, package)) == before


def test_plans_depend_on_what_the_planner_may_import() -> None:
    assert set(PLANNING) == {"planner", *ROOMS["planner"].split()}
