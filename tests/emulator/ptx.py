"""Parse the PTX that NVRTC writes into small frozen values.

Scopes (braces, which inline assembly uses) are resolved here: registers and labels declared in an
inner scope get a name of their own, so that an entry is one flat list of instructions.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace


class PtxError(ValueError):
    """Text this parser or the translator does not know."""


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register, with the type it was declared with."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, %tid.x or %laneid say."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal, as PTX writes it."""

    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a parameter, a label or a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; the base of a TMA operand also has coordinates."""

    base: "Operand"
    offset: int = 0
    coordinates: tuple["Operand", ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``, and the lists ``(a, b, ...)`` of a call."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``first|second``: a result and the predicate that goes with it."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    operand: "Operand"


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``@guard opcode operands``, with its lines in the PTX and in the source."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Operand | None
    line: int
    source: int

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The parts of the opcode: ("ld", "global", "f32")."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Label:
    """A place to jump to."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in global, const, shared, local or parameter space; size 0 is unsized."""

    name: str
    space: str
    type: str
    align: int
    size: int
    initial: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel or function: parameters, variables, registers and a flat body."""

    name: str
    results: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    registers: tuple[Register, ...]
    body: tuple[Instruction | Label, ...]
    tables: dict[str, tuple[str, ...]]
    max_threads: int


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX module: its target, variables, kernels, and functions left out of line."""

    target: str
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]
    functions: tuple[Entry, ...] = ()


SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid)\.[xyz]|laneid|warpid|nwarpid|lanemask_(?:lt|le|eq|ge|gt)"
    r"|clock|clock64|globaltimer|smid|dynamic_smem_size|total_smem_size)$"
)
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?P<space>global|const|shared|local|param)"
    r"(?P<attributes>(?:\s+\.(?:ptr|global|const|shared|local|v2|v4|align\s+\d+))*)"
    r"\s+\.(?P<type>[a-z]+\d+)(?P<pointer>(?:\s+\.(?:ptr|global|const|shared|align\s+\d+))*)"
    r"\s+(?P<name>[\w$]+)(?P<count>\s*\[\d*\])?\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+)U?$")
_INSTRUCTION = re.compile(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)


@functools.cache
def type_bytes(name: str) -> int:
    """Bytes of one element of a PTX type: 4 of "f32", 4 of "f16x2", 1 of "pred"."""
    if name == "pred":
        return 1
    width, _, lanes = re.sub(r"^(bf|[a-z]+?)(?=\d)", "", name).partition("x")
    return int(width) * int(lanes or 1) // 8


@functools.lru_cache(maxsize=2)
def parse(text: str) -> Module:
    """Parse a whole module; who builds it and who launches it ask one after the other."""
    target = re.search(r"\.target\s+(\w+)", text)
    if target is None:
        raise PtxError("no .target: not a PTX module")
    statements = list(_statements(text))
    variables: list[Variable] = []
    entries: list[Entry] = []
    functions: list[Entry] = []
    index = 0
    while index < len(statements):
        header = statements[index].text
        if _defines(statements, index):
            found = entries if ".entry" in header else functions
            entry, index = _entry(statements, index)
            found.append(entry)
        elif match := _VARIABLE.match(header):
            variables.append(_variable(match))
        index += 1
    return Module(target[1], tuple(variables), tuple(entries), tuple(functions))


def _defines(statements: list["_Statement"], index: int) -> bool:
    """Whether a body follows; a declaration of a function has none."""
    return _opens_body(statements[index].text) and statements[index + 1].text == "{"


@dataclass(frozen=True, slots=True)
class _Statement:
    """Text up to a semicolon, a label's colon, or one brace that opens or closes a scope."""

    text: str
    line: int
    source: int


def _statements(text: str) -> Iterator[_Statement]:
    """Split a module; comments, debug sections and line directives are taken out."""
    source = 0
    pending, start, depth = "", 0, 0
    for number, line in enumerate(_without_comments(text), 1):
        if match := re.match(r"\s*\.loc\s+\d+\s+(\d+)", line):
            source = int(match[1])
            continue
        if re.match(r"\s*\.(file|version|target|address_size)\b", line):
            continue
        if re.match(r"\s*\.section\b", line):
            return
        for piece in re.findall(r"\s+|[;{}]|[\w$%]+:(?![:\w])|[^;{}\s]+", line):
            if not pending and not piece.strip():
                continue
            start = start if pending else number
            scope = piece in "{}" and (not pending or _opens_body(pending))
            if scope and not depth:
                if pending.strip():
                    yield _Statement(pending.strip(), start, source)
                yield _Statement(piece, number, source)
                pending = ""
            elif piece == ";" or (not pending and piece.endswith(":")):
                yield _Statement((pending + piece).rstrip(";").strip(), start, source)
                pending = ""
            else:
                depth += (piece == "{") - (piece == "}")
                pending += piece
        pending = pending and pending + " "


def _opens_body(pending: str) -> bool:
    return ".entry" in pending or ".func" in pending


def _without_comments(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    return [line.split("//")[0] for line in text.replace("\0", "").splitlines()]


def _variable(match: re.Match[str]) -> Variable:
    align = re.search(r"align\s+(\d+)", match["attributes"])
    element = type_bytes(match["type"])
    digits = (match["count"] or "[1]").strip().strip("[]")
    initial = (match["initial"] or "").strip().strip("{}")
    return Variable(
        name=match["name"],
        space=match["space"],
        type=match["type"],
        align=int(align[1]) if align else element,
        size=element * int(digits or 0),
        initial=tuple(part.strip() for part in initial.split(",") if part.strip()),
    )


def _parameters(text: str) -> Iterator[Variable]:
    for part in text.split(","):
        if match := _VARIABLE.match(part.strip()):
            yield _variable(match)
        elif part.strip():
            raise PtxError(f"parameter {part.strip()!r}")


def _entry(statements: list[_Statement], index: int) -> tuple[Entry, int]:
    header = statements[index].text
    match = re.search(
        r"\.(?:entry|func)\s+(?:\((.*?)\)\s*)?([\w$]+)\s*(?:\((.*?)\))?", header, re.DOTALL
    )
    threads = re.search(r"\.(?:max|req)ntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", header)
    assert match is not None
    end = _closing(statements, index + 1)
    body = _Body(statements[index + 2 : end])
    limit = 1
    for part in threads.groups() if threads else ("1024",):
        limit *= int(part or 1)
    entry = Entry(
        name=match[2],
        results=tuple(_parameters(match[1] or "")),
        parameters=tuple(_parameters(match[3] or "")),
        variables=tuple(body.variables),
        registers=tuple(body.registers),
        body=tuple(body.items),
        tables=body.tables,
        max_threads=limit,
    )
    return entry, end


def _closing(statements: list[_Statement], opening: int) -> int:
    """The index of the brace that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(statements)):
        depth += {"{": 1, "}": -1}.get(statements[index].text, 0)
        if not depth:
            return index
    raise PtxError("a brace is never closed")


@dataclass(slots=True)
class _Scope:
    suffix: str
    registers: dict[str, Register] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # and variables


class _Body:
    """The statements of one entry, resolved scope by scope."""

    def __init__(self, statements: list[_Statement]) -> None:
        self.variables: list[Variable] = []
        self.registers: list[Register] = []
        self.items: list[Instruction | Label] = []
        self.tables: dict[str, tuple[str, ...]] = {}
        self._scopes = [_Scope("")]
        self._opened = 0
        self._declare_labels(statements, 0)
        for index, statement in enumerate(statements):
            self._statement(statement, statements, index)

    def _statement(self, statement: _Statement, statements: list[_Statement], index: int) -> None:
        text = statement.text
        if text == "{":
            self._opened += 1
            self._scopes.append(_Scope(f"__{self._opened}"))
            self._declare_labels(statements, index + 1)
        elif text == "}":
            self._scopes.pop()
        elif text.endswith(":"):
            self.items.append(Label(self._label(text[:-1])))
        elif text.startswith(".reg"):
            self._declare_registers(text)
        elif text.startswith(".branchtargets"):
            label = self.items.pop()
            assert isinstance(label, Label)
            names = text.removeprefix(".branchtargets").split(",")
            self.tables[label.name] = tuple(self._label(name.strip()) for name in names)
        elif match := _VARIABLE.match(text):
            self._declare_variable(_variable(match))
        elif not text.startswith("."):
            self.items.append(self._instruction(statement))

    def _declare_labels(self, statements: list[_Statement], start: int) -> None:
        """Enter the labels of the scope that begins at ``start``, inner scopes left out."""
        depth, scope = 0, self._scopes[-1]
        for statement in statements[start:]:
            depth += {"{": 1, "}": -1}.get(statement.text, 0)
            if depth < 0:
                return
            if not depth and statement.text.endswith(":"):
                name = statement.text[:-1]
                scope.labels[name] = name + scope.suffix

    def _declare_variable(self, variable: Variable) -> None:
        scope = self._scopes[-1]
        scope.labels[variable.name] = variable.name + scope.suffix
        self.variables.append(replace(variable, name=scope.labels[variable.name]))

    def _declare_registers(self, text: str) -> None:
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL)
        assert match is not None
        scope = self._scopes[-1]
        for declared in match[2].split(","):
            name, _, count = declared.strip().rstrip(">").partition("<")
            for each in [f"{name}{i}" for i in range(int(count))] if count else [name]:
                scope.registers[each] = Register(each + scope.suffix, match[1])
                self.registers.append(scope.registers[each])

    def _label(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope.labels:
                return scope.labels[name]
        return name

    def _instruction(self, statement: _Statement) -> Instruction:
        match = _INSTRUCTION.match(statement.text)
        if match is None:
            raise PtxError(f"line {statement.line}: {statement.text!r}")
        guard = self._operand(match[2]) if match[2] else None
        return Instruction(
            opcode=match[3],
            operands=tuple(self._operand(text) for text in split_operands(match[4])),
            guard=Negated(guard) if guard and match[1] else guard,
            line=statement.line,
            source=statement.source,
        )

    def _operand(self, text: str) -> Operand:
        if text.startswith(("{", "(")):
            return Vector(tuple(self._operand(part) for part in split_operands(text[1:-1])))
        if text.startswith("["):
            return self._address(text[1:-1].strip())
        if text.startswith("!"):
            return Negated(self._operand(text[1:].strip()))
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        if _NUMBER.match(text):
            return Immediate(text)
        if SPECIAL.match(text):
            return Special(text)
        return self._named(text)

    def _named(self, text: str) -> Operand:
        for scope in reversed(self._scopes):
            if text in scope.registers:
                return scope.registers[text]
        if text.startswith("%"):
            raise PtxError(f"unknown register {text}")
        return Symbol(self._label(text))

    def _address(self, text: str) -> Address:
        parts = split_operands(text)
        if len(parts) == 2:
            coordinates = self._operand(parts[1])
            assert isinstance(coordinates, Vector)
            base = self._address(parts[0])
            return Address(base.base, base.offset, coordinates.items)
        match = re.match(r"(%?[\w$.]+)\s*(?:\+?\s*(-?\d+))?$", text)
        if match is None:
            raise PtxError(f"address [{text}]")
        return Address(self._operand(match[1]), int(match[2] or 0))


def split_operands(text: str) -> list[str]:
    """Split at the commas outside braces and brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts
