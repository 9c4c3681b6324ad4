"""The documents' python blocks: run statement by statement, what comments say of them checked.

A block needs what ``.[host]`` installs, and the packages named behind ``python needs``. A comment
behind an expression may be its value; one below it is the beginning of what it prints, or the
error it raises, with dots for what depends on the machine.
"""

import ast
import contextlib
import importlib.abc
import importlib.metadata
import io
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contract as ct

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "contract" / "REFERENCE.md"
DOCUMENTS = (README, ROOT / "contract" / "GUIDE.md", REFERENCE)


@dataclass(frozen=True)
class Block:
    """The code between two fences, and the packages it needs beyond NumPy and Numba."""

    document: Path
    needs: tuple[str, ...]
    code: str


def blocks() -> list[Block]:
    """All blocks of all documents in order."""
    fence = re.compile(r"```python(?: needs ([\w ]+))?\n(.*?)```", re.S)
    return [
        Block(each, tuple(needs.split()), code)
        for each in DOCUMENTS
        for needs, code in fence.findall(each.read_text())
    ]


def run(block: Block, names: dict[str, Any]) -> int:
    """Run a block in ``names``; the number of comments that were checked."""
    lines = block.code.splitlines()
    statements = ast.parse(block.code).body
    ends = [each.lineno - 1 for each in statements[1:]] + [len(lines)]
    checked = 0
    for statement, end in zip(statements, ends, strict=True):
        behind, *below = lines[statement.end_lineno - 1 : end]
        said = " ".join(line.removeprefix("# ") for line in below if line.startswith("# "))
        value = behind.partition("  # ")[2]
        checked += _run(str(block.document), statement, value, said, names)
    return checked


def _run(path: str, statement: ast.stmt, value: str, said: str, names: dict[str, Any]) -> bool:
    """Whether the comments said something that can be checked."""
    if not isinstance(statement, ast.Expr):
        exec(compile(ast.Module([statement], []), path, "exec"), names)
        return False
    printed, raised = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            found = eval(compile(ast.Expression(statement.value), path, "eval"), names)
    except ct.ContractError as error:
        found, raised = None, f"{type(error).__name__}: {error}"
    if raised or said:
        pattern = ".*".join(map(re.escape, said.split("...")))
        found = raised or printed.getvalue().partition("\n")[0]
        assert re.fullmatch(pattern, found), (said, found)
        return True
    return _is_value(found, value)


def _is_value(value: Any, comment: str) -> bool:
    """Compare a value with a comment that is one: True, a tuple, or numbers with gaps."""
    if re.search(r"\bTrue\b", comment):
        assert value is True, comment
        return True
    if re.match(r"\(\d", comment):
        assert value == ast.literal_eval(comment.partition(":")[0]), (value, comment)
        return True
    if re.match(r"\d+, ", comment):
        _check_numbers([int(x) for x in value], comment.partition(";")[0])
        return True
    return False


def _check_numbers(values: list[int], comment: str) -> None:
    """The runs of numbers between the gaps follow one another, the first at the beginning."""
    at = 0
    for number, run_ in enumerate(re.findall(r"\d+(?:, \d+)*", comment)):
        wanted = [int(x) for x in run_.split(", ")]
        places = [i for i in range(at, len(values)) if values[i : i + len(wanted)] == wanted]
        assert places, (run_, comment)
        assert number or places[0] == 0, comment
        at = places[0] + len(wanted)


# --- an environment with .[host] alone --------------------------------------------------------


class Absent(importlib.abc.MetaPathFinder):
    """Packages that are installed here, and would not be there."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse them."""
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r} with .[host] alone", name=name)


def absent_with_host_alone() -> set[str]:
    """Top-level modules of distributions that ``pip install '.[host]'`` does not install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["host"]]
    installed = set(_closure(wanted))
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not installed & {_plain(owner) for owner in owners}
        and module not in ("contract", "tests")
    }


def _closure(requirements: list[str]) -> Iterator[str]:
    for each in requirements:
        if "extra ==" in each:
            continue
        name = _plain(re.match(r"[\w.-]+", each)[0])  # type: ignore[index]
        yield name
        yield from _closure(importlib.metadata.requires(name) or [])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent(absent_with_host_alone()))
    names: dict[str, Any] = {}
    checked = sum(run(block, names) for block in blocks() if not block.needs)
    print(checked)
