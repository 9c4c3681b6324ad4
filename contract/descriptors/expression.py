"""Einstein notation -> modes. Below this module no code looks into a string.

``parse`` and ``interleaved`` read what was written into a Notation: labels, and Ellipsis for an
ellipsis. ``Notation.resolve`` gives the operands' ranks and returns an Expression: modes as
small integers.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import EllipsisType

from contract.descriptors.layout import NAMED_LAYOUTS
from contract.errors import InvalidValueError
from contract.support.text import shown

__all__ = ["Expression", "Notation", "interleaved", "mode_extents", "parse", "parse_layout"]

Label = Hashable | EllipsisType
Labels = tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """The modes of every operand and of the output; ``labels[mode]`` is what a person reads.

    Modes are 0, 1, ... in order of first appearance.
    """

    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        separator = "" if all(len(label) == 1 for label in self.labels) else " "
        terms = [separator.join(self.labels[m] for m in modes) for modes in self.inputs]
        return ",".join(terms) + "->" + separator.join(self.labels[m] for m in self.output)


@dataclass(frozen=True, slots=True)
class Notation:
    """What was written: labels per operand, and the output's, or None where it is implied."""

    inputs: tuple[Labels, ...]
    output: Labels | None

    def resolve(self, ranks: Sequence[int]) -> Expression:
        """The expression for operands of these ranks.

        An ellipsis stands for the dimensions that the labels leave, aligned at the right. An
        implied output has the ellipsis first, then the labels that occur once in all operands,
        sorted: strings by code point, integers by value, labels that do not compare by the name
        of their type and their representation.
        """
        if len(ranks) != len(self.inputs):
            raise InvalidValueError(
                f"One term for each operand: {len(self.inputs)} terms, {len(ranks)} operands."
            )
        widths = [
            _ellipsis_width(at, labels, rank)
            for at, (labels, rank) in enumerate(zip(self.inputs, ranks, strict=True))
        ]
        widest = max(widths, default=0)
        terms = [
            _expanded(labels, width) for labels, width in zip(self.inputs, widths, strict=True)
        ]
        modes: dict[Label, int] = {}
        inputs = tuple(tuple(modes.setdefault(x, len(modes)) for x in term) for term in terms)
        output = self._output(widest)
        for label in output:
            if label not in modes:
                raise InvalidValueError(
                    f"Every output label occurs in an operand: {str(label)!r} does not."
                )
        return Expression(inputs, tuple(modes[x] for x in output), tuple(map(str, modes)))

    def _output(self, widest: int) -> Labels:
        if self.output is None:
            counts = Counter(label for labels in self.inputs for label in labels)
            once = [x for x, n in counts.items() if n == 1 and x is not Ellipsis]
            return (*_expanded((Ellipsis,), widest), *_sorted(once))
        if widest and Ellipsis not in self.output:
            raise InvalidValueError(
                f"The operands' ellipses stand for {widest} dimensions, so the output needs an "
                "ellipsis as well."
            )
        return _expanded(self.output, widest)


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """The label of one dimension under an ellipsis, counted from the right end."""

    from_right: int

    def __str__(self) -> str:
        return f"…{self.from_right}"


def _expanded(labels: Labels, width: int) -> Labels:
    """The labels with the ellipsis written out as ``width`` labels."""
    if Ellipsis not in labels:
        return labels
    dimensions = tuple(_Broadcast(at) for at in range(width - 1, -1, -1))
    return tuple(
        each for label in labels for each in (dimensions if label is Ellipsis else (label,))
    )


def _ellipsis_width(operand: int, labels: Labels, rank: int) -> int:
    """How many dimensions the operand's ellipsis stands for."""
    named = sum(label is not Ellipsis for label in labels)
    exact = Ellipsis not in labels
    if named > rank or (exact and named < rank):
        written = " ".join("..." if label is Ellipsis else str(label) for label in labels)
        raise InvalidValueError(
            f"One label for each dimension: operand {operand} has {rank} dimensions and "
            f"{named} labels ({written or 'none'})."
        )
    return rank - named


def _sorted(labels: Sequence[Label]) -> list[Label]:
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return sorted(labels, key=lambda x: (type(x).__name__, repr(x)))


# --- reading ----------------------------------------------------------------------------------


def parse(text: str, operand_count: int | None = None) -> Notation:
    """``"abc,kb->ac"`` -> Notation; labels are letters and what is not ASCII, spaces do not matter.

    Raises InvalidValueError that points at what cannot be read.
    """
    inputs, arrow, output = text.partition("->")
    terms = tuple(_term(part, text) for part in inputs.split(","))
    if operand_count is not None and len(terms) != operand_count:
        raise InvalidValueError(
            f"One term for each operand: {text!r} has {len(terms)} terms, "
            f"{operand_count} operands were given"
            f"{', which are given one by one, not in a list' * (operand_count == 1)}."
        )
    return Notation(terms, _term(output, text) if arrow else None)


def _term(part: str, text: str) -> Labels:
    """One operand's labels."""
    if part.isalpha():
        return tuple(part)
    labels: list[Label] = []
    at = 0
    while at < len(part):
        if part.startswith("...", at):
            labels.append(Ellipsis)
            at += 3
            continue
        if _is_label(part[at]):
            labels.append(part[at])
        elif not part[at].isspace():
            raise InvalidValueError(
                f"An expression has letters, ',', '...' and one '->': {text!r} has {part[at]!r} "
                f"at an unexpected place in {part!r}."
            )
        at += 1
    return _with_one_ellipsis(tuple(labels), text)


def _is_label(character: str) -> bool:
    """Letters; beyond ASCII whatever is no space, as opt_einsum's symbols are."""
    return character.isalpha() or (not character.isascii() and not character.isspace())


def _with_one_ellipsis(labels: Labels, written: object) -> Labels:
    if sum(label is Ellipsis for label in labels) > 1:
        raise InvalidValueError(f"A term has at most one ellipsis: {written!r} has more.")
    return labels


def interleaved(sublists: Sequence[Labels], output: Labels | None) -> Notation:
    """Labels given as sequences of hashables and Ellipsis, one for each operand."""
    for labels in (*sublists, *(() if output is None else (output,))):
        for label in labels:
            if not isinstance(label, Hashable):
                raise InvalidValueError(f"A label is hashable: {shown(label)} is not.")
        _with_one_ellipsis(tuple(labels), labels)
    return Notation(tuple(map(tuple, sublists)), None if output is None else tuple(output))


# --- extents ------------------------------------------------------------------------------------


def mode_extents(
    inputs: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], labels: Sequence[str]
) -> tuple[int, ...]:
    """The extent of every mode of operands with these modes and shapes.

    Extent 1 broadcasts, except along a diagonal.
    """
    extents = [1] * len(labels)
    owner = [0] * len(labels)
    for operand, (modes, shape) in enumerate(zip(inputs, shapes, strict=True)):
        own: dict[int, int] = {}
        for mode, extent in zip(modes, shape, strict=True):
            if own.setdefault(mode, extent) != extent:
                raise InvalidValueError(
                    f"Extent mismatch for mode {labels[mode]!r} repeated in operand {operand}: "
                    f"{own[mode]} and {extent}."
                )
            known = extents[mode]
            if extent == known or extent == 1:
                continue
            if known != 1:
                raise InvalidValueError(
                    f"Extent mismatch for mode {labels[mode]!r}: operand {owner[mode]} has "
                    f"{known}, operand {operand} has {extent}."
                )
            extents[mode], owner[mode] = extent, operand
    return tuple(extents)


def parse_layout(name: str) -> tuple[str, int]:
    """The modes of a named layout from slowest to fastest, and the size of its channel groups.

    "NHWC" -> ("NHWC", 0); "NC/32HW32" -> ("NCHW", 32): channels in groups of 32, innermost.
    """
    if isinstance(name, str) and name in NAMED_LAYOUTS:
        return name, 0
    found = re.fullmatch(r"NC/([1-9][0-9]*)(D?HW)([1-9][0-9]*)", str(name))
    if found is None or found[1] != found[3]:
        raise InvalidValueError(
            f"Unknown layout {shown(name)}; known are {', '.join(NAMED_LAYOUTS)} and NC/xHWx, "
            "NC/xDHWx with a number for x."
        )
    return f"NC{found[2]}", int(found[1])
