"""Write a parsed PTX module as C++ on the runtime: one function per kernel."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .opcodes import find
from .opcodes.code import (
    Code,
    buffer_name,
    function_name,
    label_name,
    register_name,
    register_type,
)
from .opcodes.hopper import accumulators
from .opcodes.memory import narrowest_shared_access
from .ptx import (
    Address,
    Entry,
    Instruction,
    Label,
    Module,
    PtxError,
    Register,
    Symbol,
    Variable,
    type_bytes,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where variables lie: the offset of each name, and the bytes in all."""

    offsets: dict[str, int]
    total: int


def lay_out(variables: tuple[Variable, ...]) -> Layout:
    """Place variables one after the other, each at a multiple of its alignment."""
    offsets, end = {}, 0
    for variable in variables:
        offsets[variable.name] = start = -(-end // variable.align) * variable.align
        end = start + variable.size
    return Layout(offsets, end)


def static_shared(entry: Entry, module: Module) -> int:
    """Bytes of static shared memory, up to where the dynamic part begins if there is one."""
    total = lay_out(_shared(entry, module)).total
    align = max((v.align for v in _dynamic(entry, module)), default=1)
    return -(-total // align) * align


def translate(module: Module) -> str:
    """The C++ of a whole module, to be built with kernel.h included before it."""
    return "\n".join(
        [
            "namespace emu {",
            *_module_variables(module),
            *(f"{_signature(function)};" for function in module.functions),
            *(_function(each, module) for each in (*module.functions, *module.entries)),
            _kernel_table(module),
            _variable_table(module),
            "}  // namespace emu",
            'extern "C" const emu::Module emu_module = {'
            f"emu::kernels, emu::variables, {len(_placed(module))}, {cell_bytes(module)}}};",
            "",
        ]
    )


def cell_bytes(module: Module) -> int:
    """Bytes under one shadow cell: the narrowest access to shared memory."""
    both = (*module.entries, *module.functions)
    code = [i for entry in both for i in entry.body if isinstance(i, Instruction)]
    return narrowest_shared_access(code)


def _all(entry: Entry, module: Module) -> tuple[Variable, ...]:
    return module.variables + entry.variables


def _shared(entry: Entry, module: Module) -> tuple[Variable, ...]:
    return tuple(v for v in _all(entry, module) if v.space == "shared" and v.size)


def _dynamic(entry: Entry, module: Module) -> Iterator[Variable]:
    """The unsized shared variables that an entry uses; all begin at the same place."""
    operands = [o for i in entry.body if isinstance(i, Instruction) for o in i.operands]
    used = {o.base if isinstance(o, Address) else o for o in operands}
    for variable in _all(entry, module):
        if variable.space == "shared" and not variable.size and Symbol(variable.name) in used:
            yield variable


def _local(module: Module) -> tuple[Variable, ...]:
    """All local variables of a module: no function is called again before it returned."""
    both = (*module.entries, *module.functions)
    return tuple(v for each in both for v in each.variables if v.space == "local")


def _module_variables(module: Module) -> Iterator[str]:
    """Global and constant variables are arrays of the shared library."""
    for variable in _placed(module):
        kind = register_type(f"b{type_bytes(variable.type) * 8}")
        count = max(1, variable.size // type_bytes(variable.type))
        initial = ", ".join(_initial(text) for text in variable.initial)
        name = _global_name(variable.name)
        yield f"alignas({variable.align}) static {kind} {name}[{count}] = {{{initial}}};"


def _placed(module: Module) -> tuple[Variable, ...]:
    """The variables in global and constant memory."""
    return tuple(v for v in module.variables if v.space in ("global", "const"))


def _initial(text: str) -> str:
    """A literal of an initialiser as bits."""
    if text[:2].lower() in ("0f", "0d"):
        return f"0x{text[2:]}"
    if not re.fullmatch(r"-?\w+", text) or not (text.lstrip("-")[0].isdigit()):
        raise PtxError(f"initial value {text}")
    return text


def _global_name(name: str) -> str:
    return "G_" + re.sub(r"\W", "_", name)


def _symbols(entry: Entry, module: Module) -> dict[str, str]:
    """Addresses in their spaces; dynamic shared memory follows the static."""
    symbols = {v.name: f"(uint64_t){_global_name(v.name)}" for v in _placed(module)}
    # A function does not know where its caller's shared variables lie.
    shared = () if entry in module.functions else _shared(entry, module)
    for variables in (shared, _local(module), entry.parameters):
        symbols |= {name: str(at) for name, at in lay_out(variables).offsets.items()}
    start = str(static_shared(entry, module))
    return symbols | {variable.name: start for variable in _dynamic(entry, module)}


def _function(entry: Entry, module: Module) -> str:
    calls = tuple(v for v in entry.variables if v.space == "param")
    given = entry.results + entry.parameters if entry in module.functions else ()
    code = Code(
        symbols=_symbols(entry, module),
        tables=entry.tables,
        buffers=frozenset(v.name for v in calls + given),
        functions=frozenset(function.name for function in module.functions),
        accumulators=accumulators(entry.body),
    )
    buffers = [f"alignas(16) char {buffer_name(v.name)}[{v.size}];" for v in calls]
    body = [_line(item, code) for item in entry.body]
    lines = ["bool carry;", _declarations(entry.registers), *buffers, *body]
    signature = _signature(entry) if given else f"static void {function_name(entry.name)}()"
    return signature + " {\n" + "\n".join(lines) + "\n}"


def _signature(function: Entry) -> str:
    buffers = (buffer_name(v.name) for v in function.results + function.parameters)
    arguments = ", ".join(f"char *{buffer}" for buffer in buffers)
    return f"static void {function_name(function.name)}({arguments})"


def _declarations(registers: tuple[Register, ...]) -> str:
    by_type: dict[str, list[str]] = {}
    for register in registers:
        by_type.setdefault(register_type(register.type), []).append(register_name(register))
    return "\n".join(f"{kind} {', '.join(names)};" for kind, names in by_type.items())


def _line(item: Instruction | Label, code: Code) -> str:
    if isinstance(item, Label):
        return f"{label_name(item.name)}:;"
    try:
        rule = find(item.opcode)
        text = rule.write(item, code)
    except (PtxError, ValueError) as error:
        raise PtxError(f"PTX line {item.line}: {item.opcode}: {error}") from error
    place = f"here = {item.line}; " if rule.checked else ""
    guard = f"if ({code.value(item.guard, 'pred')}) " if item.guard else ""
    return f"{guard}{{ {place}{text} }}"


def _kernel_table(module: Module) -> str:
    rows = [
        f'{{"{entry.name}", {function_name(entry.name)}, {static_shared(entry, module)}, '
        f"{lay_out(_local(module)).total}}},"
        for entry in module.entries
    ]
    return "static const Kernel kernels[] = {" + " ".join(rows) + "};"


def _variable_table(module: Module) -> str:
    """Where the module's variables lie, and a row that is never read (C++ has no empty arrays)."""
    names = (_global_name(variable.name) for variable in _placed(module))
    rows = [*(f"{{{name}, (&{name})[1]}}," for name in names), "{nullptr, nullptr}"]
    return "static const Variable variables[] = {" + " ".join(rows) + "};"
