"""Smaller cases: fewer operands, modes and options, smaller extents, plainer layouts."""

from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz.cases import NETWORKS, Case, Memory, Tensor, Verb

__all__ = ["smaller"]

PLAIN = {
    "operators": None,
    "slices": None,
    "preference": (),
    "compute_type": None,
    "constants": (),
    "checked": False,
    "calls": 1,
    "threads": 1,
    "interleaved": False,
    "optimize": "auto",
    "padding": None,
    "padding_value": 0,
    "order": "F",
    "kernels": "numpy",
    "at_end": True,
    "implicit": False,
    "ellipsis": "",
    "scalars": (1, None, 1),
}


def smaller(case: Case) -> Iterator[Case]:
    """Cases that lack something of ``case``, those that lack most first."""
    yield from _without_operands(case)
    yield from _without_labels(case)
    yield from _without_options(case)
    yield from _with_smaller_extents(case)
    yield from _with_plain_layouts(case)
    yield from _with_less_memory(case)


def _without_operands(case: Case) -> Iterator[Case]:
    fewest = 2 if case.verb is Verb.PLAN else 1
    if case.verb not in NETWORKS or len(case.terms) <= fewest:
        return
    for at in range(len(case.terms)):
        terms = case.terms[:at] + case.terms[at + 1 :]
        operands = case.operands[:at] + case.operands[at + 1 :]
        lost = set(case.output) - set("".join(terms))
        if isinstance(case.out, int) or case.operators is not None or case.constants:
            continue
        found = replace(case, implicit=False)
        for label in lost:
            found = _without_label(found, label)
        terms = tuple("".join(x for x in term if x not in lost) for term in terms)
        yield replace(found, terms=terms, operands=operands)


def _without_labels(case: Case) -> Iterator[Case]:
    if not case.ellipsis and not case.implicit and case.padding is None:
        for label in dict.fromkeys("".join(case.terms)):
            yield _without_label(case, label)


def _without_label(case: Case, label: str) -> Case:
    operands = tuple(map(_without, case.operands, case.terms, [label] * len(case.terms)))
    c = None if case.c is None else _without(case.c, case.output, label)
    out = _without(case.out, case.output, label) if isinstance(case.out, Tensor) else case.out
    terms = tuple(term.replace(label, "") for term in case.terms)
    output = case.output.replace(label, "")
    return replace(case, terms=terms, output=output, operands=operands, c=c, out=out)


def _without(tensor: Tensor, term: str, label: str) -> Tensor:
    kept = [at for at, x in enumerate(term) if x != label]
    shape, strides = (tuple(x[at] for at in kept) for x in (tensor.shape, tensor.strides))
    return replace(tensor, shape=shape, strides=strides)


def _without_options(case: Case) -> Iterator[Case]:
    for name, value in PLAIN.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})
    if case.c is not None and case.out != "c" and case.operators is None:
        alpha, _, gamma = case.scalars
        yield replace(case, c=None, scalars=(alpha, None, gamma))
    if case.out is not None and not case.verb.value.startswith("Handle"):
        yield replace(case, out=None)
    if len(case.preference) > 1:
        for at in range(len(case.preference)):
            yield replace(case, preference=case.preference[:at] + case.preference[at + 1 :])


def _with_smaller_extents(case: Case) -> Iterator[Case]:
    if case.padding is not None:
        return
    for label, extent in case.extents.items():
        for less in (2, extent // 2, extent - 1):
            if 1 < less < extent:
                yield _with_extent(case, label, less)


def _with_extent(case: Case, label: str, extent: int) -> Case:
    operands = tuple(
        _resized(x, term, label, extent) for x, term in zip(case.operands, case.terms, strict=True)
    )
    c = None if case.c is None else _resized(case.c, case.output, label, extent)
    out = case.out
    if isinstance(out, Tensor):
        out = _resized(out, case.output, label, extent)
    return replace(case, operands=operands, c=c, out=out)


def _resized(tensor: Tensor, term: str, label: str, extent: int) -> Tensor:
    shape = tuple(
        extent if x == label and n > 1 else n for x, n in zip(term, tensor.shape, strict=True)
    )
    return replace(tensor, shape=shape)


def _with_plain_layouts(case: Case) -> Iterator[Case]:
    for at, tensor in enumerate(case.operands):
        plain = _packed(tensor)
        if plain != tensor:
            yield replace(case, operands=(*case.operands[:at], plain, *case.operands[at + 1 :]))
    if case.c is not None and _packed(case.c) != case.c:
        yield replace(case, c=_packed(case.c))
    if isinstance(case.out, Tensor) and _packed(case.out) != case.out:
        yield replace(case, out=_packed(case.out))


def _packed(tensor: Tensor) -> Tensor:
    strides, step = [], tensor.kind.itemsize
    for extent in tensor.shape[::-1]:
        strides.append(step)
        step *= max(extent, 1)
    return replace(tensor, strides=tuple(strides[::-1]), slack=0)


def _with_less_memory(case: Case) -> Iterator[Case]:
    memory = case.memory
    if memory != Memory():
        yield replace(case, memory=Memory())
        yield replace(case, memory=replace(memory, given=False))
