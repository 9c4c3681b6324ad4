"""The folders are the architecture: each room imports from rooms below it, and nothing else."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import contract
from contract import errors
from contract.support import config

PACKAGE = Path(contract.__file__).parent

# Each room with those that it may import from; ``errors`` stands below all of them. ``logging`` is
# a room of one module.
ROOMS = {
    "support": "",
    "descriptors": "support",
    "logging": "descriptors support",
    "machines": "descriptors",
    "plan": "descriptors machines support",
    "planner": "descriptors machines plan support",
    "storage": "descriptors machines plan support",
    "arrays": "descriptors",
    "execution": "arrays descriptors logging machines plan planner support",
    "host": "arrays descriptors execution logging machines plan planner storage support",
    "device": "arrays descriptors execution logging machines plan planner storage support",
    "explain": "descriptors device logging machines plan planner support",
    "session": "arrays descriptors device execution explain host logging machines plan planner "
    "storage support",
    "slices": "arrays descriptors execution host logging plan planner session support",
    "api": "arrays descriptors execution explain host logging plan planner session slices storage "
    "support",
    "cli": "api descriptors execution host machines planner session storage support",
}
ROOMS_BELOW_EXECUTION = ("support", "descriptors", "logging", "machines", "plan", "planner")
# Rooms inside of a room, the lowest first: each imports from those before it.
FLOORS = {
    "planner": ("planner.matrices", "planner.host", "planner.device", "planner"),
    "host": (
        *("host.resources", "host.kernels", "host.compiled", "host.compiled.functions"),
        *("host.steps", "host"),
    ),
    "device": ("device.kernels", "device"),
}
ARRAY_LIBRARIES = {"numpy", "cupy", "numba", "torch", "jax"}
# What few programs need, and no program shall wait for that does not ask for it.
RARELY_NEEDED = {
    *("fractions", "matplotlib", "numba", "opt_einsum", "platformdirs", "tqdm"),
    *("contract.api.request_text", "contract.arrays.jax_arrays", "contract.arrays.torch_tensors"),
    *("contract.cli", "contract.descriptors.overlap", "contract.device.executor"),
    *("contract.explain", "contract.host.executor", "contract.planner.device"),
    *("contract.slices.fitted_plans", "contract.slices.search", "contract.slices.sliced_plan"),
}


def modules() -> dict[str, Path]:
    """Every module by its name below the package; a room's own is the room's name."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = modules()
INSIDE = sorted(name for name in MODULES if name not in ("", "__main__", "errors"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Every module named by an import statement, and what is taken from it; "" for itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from ((node.module, alias.name) for alias in node.names)


def own_imports(name: str) -> set[str]:
    """The modules of this package that a module imports."""
    found = set()
    for module, taken in imported(MODULES[name]):
        if module.split(".")[0] == "contract":
            below = module.removeprefix("contract").lstrip(".")
            inner = f"{below}.{taken}".lstrip(".")
            found.add(inner if inner in MODULES else below)
    return found - {name}


def room_of(module: str) -> str:
    """The package itself is what the verbs are taken from."""
    return module.split(".")[0] or "api"


def floor_of(module: str) -> str:
    """The folder that a module lies in; a room's own module lies in the room."""
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


def libraries_of(name: str) -> set[str]:
    return {module.split(".")[0] for module, _ in imported(MODULES[name])}


# --- rooms ----------------------------------------------------------------------------------------


def test_every_folder_is_a_room_that_says_what_it_is() -> None:
    assert {room_of(name) for name in INSIDE} == set(ROOMS)
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{name} says nothing"


def test_rooms_import_downwards() -> None:
    """In the order of the table every room's neighbours stand before it."""
    seen: set[str] = set()
    for room, below in ROOMS.items():
        assert set(below.split()) <= seen, f"{room} imports from a room above"
        seen.add(room)


@pytest.mark.parametrize("name", INSIDE)
def test_a_module_imports_from_its_room_and_those_below(name: str) -> None:
    allowed = {room_of(name), "errors", *ROOMS[room_of(name)].split()}
    beyond = {other for other in own_imports(name) if room_of(other) not in allowed}
    assert not beyond, f"{name} imports {sorted(beyond)}"


def test_the_table_allows_nothing_that_is_not_needed() -> None:
    used = {
        room: {
            room_of(other)
            for name in INSIDE
            if room_of(name) == room
            for other in own_imports(name)
        }
        - {room, "errors"}
        for room in ROOMS
    }
    assert used == {room: set(below.split()) for room, below in ROOMS.items()}


@pytest.mark.parametrize("room", FLOORS)
def test_floors_of_a_room_import_downwards(room: str) -> None:
    floors = FLOORS[room]
    for name in INSIDE:
        if room_of(name) == room:
            level = floors.index(floor_of(name))
            above = {
                x
                for x in own_imports(name)
                if room_of(x) == room and floors.index(floor_of(x)) > level
            }
            assert not above, f"{name} imports {sorted(above)}"


@pytest.mark.parametrize("room", sorted({floor_of(name) for name in INSIDE}))
def test_modules_of_a_room_import_each_other_one_way(room: str) -> None:
    inside = {name for name in INSIDE if floor_of(name) == room and name != room}
    waiting = {name: own_imports(name) & inside for name in inside}
    while waiting:
        free = {name for name, needs in waiting.items() if not needs & waiting.keys()}
        assert free, f"a circle among {sorted(waiting)}"
        waiting = {name: needs for name, needs in waiting.items() if name not in free}


@pytest.mark.parametrize("name", INSIDE)
def test_no_room_takes_a_private_name_of_another(name: str) -> None:
    for module, taken in imported(MODULES[name]):
        own = module.split(".")[:2] == ["contract", room_of(name)]
        private = taken.startswith("_") and not taken.startswith("__")
        assert own or not module.startswith("contract") or not private, f"{name}: {module}.{taken}"


# --- what a room knows ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [x for x in INSIDE if room_of(x) in ROOMS_BELOW_EXECUTION])
def test_no_array_library_below_execution(name: str) -> None:
    assert not libraries_of(name) & ARRAY_LIBRARIES


def test_host_and_device_do_not_know_each_other() -> None:
    assert "host" not in ROOMS["device"].split()
    assert "device" not in ROOMS["host"].split()


def test_nobody_but_the_command_line_prints() -> None:
    for name in INSIDE:
        for node in ast.walk(ast.parse(MODULES[name].read_text())):
            prints = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if prints and node.func.id == "print":
                assert room_of(name) == "cli", f"{name}:{node.lineno} prints"


def test_one_module_imports_cupy() -> None:
    assert {name for name in INSIDE if "cupy" in libraries_of(name)} == {"arrays.cupy_module"}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_are_imported_by_the_caller_only(library: str) -> None:
    assert not [name for name in MODULES if library in libraries_of(name)]


def test_only_the_paths_import_opt_einsum() -> None:
    assert {name for name in INSIDE if "opt_einsum" in libraries_of(name)} == {"planner.paths"}


def test_import_brings_nothing_in_that_few_programs_need() -> None:
    assert not RARELY_NEEDED & set(printed("import contract, sys; print(*sys.modules)").split())


def test_import_makes_bfloat16_known_to_numpy() -> None:
    assert printed("import contract, numpy; print(numpy.dtype('bfloat16'))") == "bfloat16\n"


def printed(program: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


STRING_METHODS = {
    "split",
    "partition",
    "rpartition",
    "replace",
    "find",
    "index",
    "isalpha",
    "splitlines",
}
# Rooms in which tensors are described and planned; notation is read in one module, and a file's
# names of constants in another.
WITHOUT_NOTATION = ("descriptors", "machines", "plan", "planner", "slices")
READERS = ("descriptors.expression", "machines.constants")


@pytest.mark.parametrize(
    "name", [x for x in INSIDE if room_of(x) in WITHOUT_NOTATION and x not in READERS]
)
def test_strings_end_at_the_parser(name: str) -> None:
    """Below the verbs no code splits, searches or rewrites a string."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            on_tuple = called == "index"  # tuple.index looks a mode up
            assert on_tuple or called not in STRING_METHODS, f"{name}:{node.lineno} {called}"


def test_public_names_are_sorted_and_exist() -> None:
    assert contract.__all__ == sorted(contract.__all__)
    assert all(hasattr(contract, name) for name in contract.__all__)


def test_every_error_is_in_one_tree_and_has_a_status() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(each, errors.ContractError) for each in classes)
    assert all(each.status.isupper() for each in classes)
    assert set(errors.__all__) <= set(contract.__all__)


def test_the_environment_table_and_the_reference_agree() -> None:
    text = (PACKAGE / "REFERENCE.md").read_text()
    for variable in config.VARIABLES:
        assert f"| `{variable.name}` | {variable.meaning} |" in text


def test_ci_runs_the_command_of_the_readme() -> None:
    root = PACKAGE.parent
    if not (root / "README.md").exists():
        pytest.skip("the README is not beside an installed package")
    command = "pip install '.[test]' && pytest -n 2"
    assert command in (root / "README.md").read_text().splitlines()
    assert command in (root / ".ci" / "run").read_text().splitlines()


def test_environment_variables_are_read_in_config_only() -> None:
    readers = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == {"support.config"}
