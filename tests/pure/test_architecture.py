"""The import list is the architecture: imports go one way, and no array below the runners."""

import ast
from pathlib import Path

import pytest

import contract
from contract import config, errors

PACKAGE = Path(contract.__file__).parent

LEVELS = (
    {"errors", "text", "lattice", "version", "replacing", "forks", "whole", "choices"},
    {"config", "layout", "compute", "workspace", "order", "cache", "autotune", "sizes"},
    {"operators", "heuristics", "expression", "network", "kernels.architectures"},
    {"gradients", "descriptors", "kernels.blas_model", "kernels.configurations", "kernels.names"},
    {"kernels.arithmetic", "kernels.gett_tiles", "call_text", "slicing"},
    {"plan", "kernels.gett_model", "logging"},
    {"products", "kernels.call", "codec", "tree"},
    {"cache_files", "kernels.condition", "kernels.loops"},
    {"packing", "panel_options", "tile_boxes", "vector_loops"},
    {"kernels.product", "kernels.blas", "matrix_options", "tile_options"},
    {"kernels.boxes"},
    {"kernels.hopper_model"},
    {"host_options", "device_options"},
    {"candidates"},
    {"planner"},
    {"kernels.elementwise", "kernels.gett", "kernels.hopper", "kernels.jit", "kernels.recordable"},
    {"kernels.reduce", "kernels.slices", "verification", "advice", "scaling"},
    {"kernels.lower", "plan_files", "information"},
    {"run.limits"},
    {
        "calibration",
        "run.explain",
        "run.picture",
        "run.gate",
        "run.quiet",
        "run.neighbours",
        "run.apart",
        "run.blas_threads",
        "run.host_views",
        "run.cupy_module",
        "run.numpy_products",
    },
    {"run.kernel_files"},
    {
        "run.workers",
        "calibration_files",
        "run.progress",
        "run.processor",
        "run.torch_calls",
        "run.driver_library",
        "run.tensor_maps",
        "run.compiler_process",
        "run.code_folder",
    },
    {"run.kernel_modules", "run.cublas_library", "nvtx", "run.jax_library", "run.torch_library"},
    {"run.libraries"},
    {"run.arrays"},
    {"run.device_graphs", "run.matrix_slices"},
    {"run.compiled_code"},
    {"run.executor", "run.host_arrays", "run.device_arrays"},
    {
        "run.matrix_slices",
        "run.memory",
        "run.host_operators",
        "run.host_kernels",
        "run.linking",
        "run.numba_tools",
        "run.compiling",
    },
    {"run.numba_team"},
    {
        "run.steps",
        "run.numpy_kernels",
        "run.copy_tables",
        "run.loop_tables",
        "run.reduction_tables",
        "run.tile_kernels",
        "run.integer_products",
    },
    {"run.pass_tables"},
    {
        "run.compiled_kernels",
        "run.numba_rows",
        "run.numba_copies",
        "run.numba_combinations",
        "run.numba_tile_code",
        "run.numba_loop_code",
        "run.numba_integers",
    },
    {"run.numba_passes", "run.numba_tiles", "run.numba_loops"},
    {"run.checking", "run.kernel_families", "run.host_finish", "run.host_panels", "run.host_tiles"},
    {"run.host_elementwise", "run.host_reductions"},
    {"run.host_products"},
    {"run.host", "run.device", "run.tuned", "run.sliced", "run.switching"},
    {"run.call", "run.binding", "run.calibrating"},
    {"run.graph"},
    {"kept_plans"},
    {"planning"},
    {"handle"},
    {"fitting", "warmup"},
    {"request"},
    {"evaluation"},
    {"folding", "distributed", "request_text", "numpy_layout"},
    {"interop"},
    {"api", "elementwise", "numpy_einsum"},
    {"conversion", "numpy_functions"},
    {"", "files"},
    {"demo"},
    {"__main__"},
)
ARRAY_LIBRARIES = {"numpy", "cupy", "numba", "torch", "jax"}
PLANNING = set().union(*LEVELS[:16])


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix("__init__").rstrip(".")] = path
    return {name: path for name, path in found.items() if name not in ("run", "kernels")}


def imports(path: Path) -> set[str]:
    """Every module named by an import statement, wherever it stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(path: Path) -> set[str]:
    known = modules()
    inside = {
        name.removeprefix("contract").lstrip(".")
        for name in imports(path)
        if name.split(".")[0] == "contract"
    }
    return {name for name in inside if name in known and (name or "contract" in imports(path))}


def level_of(module: str) -> int:
    return next(at for at, names in enumerate(LEVELS) if module in names)


def test_every_module_has_a_level() -> None:
    assert set(modules()) == set().union(*LEVELS)


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_go_one_way(module: str) -> None:
    upwards = {
        other
        for other in own_imports(modules()[module]) - {"", module}
        if level_of(other) >= level_of(module)
    }
    assert not upwards, f"{module} imports {upwards} from its own level or above"


@pytest.mark.parametrize("module", sorted(PLANNING))
def test_no_array_library_below_the_runners(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(modules()[module])}
    assert not roots & ARRAY_LIBRARIES


def test_one_module_imports_cupy() -> None:
    users = {name for name, path in modules().items() if "cupy" in imports(path)}
    assert users == {"run.cupy_module"}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_are_imported_by_the_caller_only(library: str) -> None:
    roots = {name.split(".")[0] for path in modules().values() for name in imports(path)}
    assert library not in roots


def test_only_the_order_imports_opt_einsum() -> None:
    users = {name for name, path in modules().items() if "opt_einsum" in imports(path)}
    assert users == {"order"}


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
TEXT_MODULES = {
    *("expression", "files", "replacing", "__main__", "config", "text", "demo", "logging"),
}


@pytest.mark.parametrize("module", sorted(PLANNING - TEXT_MODULES))
def test_strings_end_at_the_parser(module: str) -> None:
    """Below the verbs no code splits, searches or rewrites a string."""
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            on_tuple = called == "index"  # tuple.index looks a mode up
            assert on_tuple or called not in STRING_METHODS, f"{module}:{node.lineno} {called}"


def test_public_names_are_sorted_and_exist() -> None:
    assert contract.__all__ == sorted(contract.__all__)
    assert all(hasattr(contract, name) for name in contract.__all__)


def test_every_error_is_in_one_tree_and_has_a_status() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(each, errors.ContractError) for each in classes)
    assert all(each.status.isupper() for each in classes)
    assert set(errors.__all__) <= set(contract.__all__)


def test_the_environment_table_and_the_readme_agree() -> None:
    readme = PACKAGE.parent / "README.md"
    if not readme.exists():
        pytest.skip("the README is not beside an installed package")
    text = readme.read_text()
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
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == {"config"}
