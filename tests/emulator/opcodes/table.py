"""The whitelist: patterns of full opcodes, each with the function that writes its C++.

A pattern is an opcode with alternatives in braces, ``add{,.sat}.{s32,u32}``; an opcode that no
pattern matches whole is an error, so that no modifier is ever passed over.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ..ptx import Instruction, PtxError
from .code import Code

Writer = Callable[[Instruction, Code], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern; ``checked`` instructions can fault or wait, so they tell their line first."""

    pattern: re.Pattern[str]
    write: Writer
    checked: bool


_rules: dict[str, list[Rule]] = defaultdict(list)


def handles(*patterns: str, checked: bool = False) -> Callable[[Writer], Writer]:
    """Enter a writer for the opcodes of ``patterns``."""

    def enter(write: Writer) -> Writer:
        for pattern in patterns:
            base = re.split(r"[.{]", pattern)[0]
            _rules[base].append(Rule(re.compile(_regex(pattern)), write, checked))
        return write

    return enter


@functools.cache
def find(opcode: str) -> Rule:
    """The rule for an opcode; PtxError where there is none."""
    for rule in _rules[opcode.split(".")[0]]:
        if rule.pattern.fullmatch(opcode):
            return rule
    raise PtxError(f"unknown opcode {opcode}")


def _regex(pattern: str) -> str:
    escaped = re.escape(pattern).replace(r"\{", "(?:").replace(r"\}", ")")
    return escaped.replace(",", "|")
