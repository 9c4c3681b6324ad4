"""Launches that depend on what the device found: the program neither waits nor asks."""

from dataclasses import dataclass

from contract.planner.device.launch import Fields, Pointer, entry_stub

__all__ = ["Condition", "begun", "conditional_stub", "headers"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A launch does nothing unless the 32-bit word at ``word`` is ``value``."""

    word: Pointer
    value: int


def headers(condition: Condition | None) -> tuple[str, ...]:
    """The headers that a condition needs, after those of the kernel."""
    return () if condition is None else ("condition",)


def begun(condition: Condition | None) -> Fields:
    """An argument struct as far as the kernel's own: that of When in condition.cuh, or empty."""
    fields = Fields()
    if condition is not None:
        fields.pointer(condition.word)
        fields.unsigned(condition.value, 0)
    return fields


def conditional_stub(
    condition: Condition | None, entry: str, bounds: str, *config: str, method: str
) -> str:
    """The C++ of a kernel's entry as entry_stub writes it, under a condition or under none."""
    if condition is None:
        return entry_stub(entry, bounds, *config, method=method)
    *lines, last = config
    lines = ["When<", *lines, last.removesuffix(";") + ">;"]
    return entry_stub(entry, bounds, *lines, method=f"run<Config::Kernel::{method}>")
