"""Random expressions and extents."""

from math import prod

from tests.fuzz.cases import Verb
from tests.fuzz.chances import Chances

__all__ = ["expression", "shapes"]

EXTENTS = (
    *(1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 11, 13, 16, 17, 20, 25, 31, 32, 33, 40),
    *(65, 130),
)


def expression(draw: Chances, verb: Verb) -> tuple[list[str], str, str, bool]:
    """Terms, output, the labels of the ellipsis, and whether the output is implied."""
    match verb:
        case Verb.REDUCE | Verb.REDUCE_PLAN:
            return (*_reduction(draw), "", False)
        case Verb.PERMUTE | Verb.BINARY | Verb.TRINARY | Verb.ELEMENTWISE_PLAN:
            return (*_combination(draw, verb), "", False)
    counts = {2: 60, 3: 40} if verb is Verb.PLAN else {1: 12, 2: 48, 3: 20, 4: 12, 5: 8}
    count = draw.weighted(counts)
    terms, output = _network(draw, count)
    if verb is Verb.CONTRACT and output and draw.chance(4):
        output += draw.one(output)
        return terms, output, "", False
    if verb is not Verb.PLAN and draw.chance(12):
        return (*_with_ellipsis(draw, terms, output), False)
    if verb is not Verb.PLAN and draw.chance(8):
        labels = "".join(terms)
        return terms, "".join(sorted(x for x in labels if labels.count(x) == 1)), "", True
    return terms, output, "", False


def _network(draw: Chances, count: int) -> tuple[list[str], str]:
    """Labels in one operand, in two, or in more; free or summed."""
    terms: list[list[str]] = [[] for _ in range(count)]
    output = []
    for label in "abcdefgh"[: draw.number(0 if draw.chance(5) else 1, 3 + min(count, 4))]:
        width = min(count, draw.weighted({1: 5, 2: 9, 3: 2, 4: 1}))
        for at in draw.shuffled(range(count))[:width]:
            terms[at].append(label)
        if draw.chance(55 if width == 1 else 35):
            output.append(label)
    for term in terms:
        if term and draw.chance(6):
            term.append(draw.one(term))
    return ["".join(draw.shuffled(term)) for term in terms], "".join(draw.shuffled(output))


def _with_ellipsis(draw: Chances, terms: list[str], output: str) -> tuple[list[str], str, str]:
    """Each operand has an end of the ellipsis' labels, somewhere; the output has them all."""
    ellipsis = "XYZ"[-draw.number(1, 2) :]
    whole = draw.number(0, len(terms) - 1)
    found = []
    for at, term in enumerate(terms):
        end = ellipsis if at == whole else ellipsis[draw.number(0, len(ellipsis)) :]
        cut = draw.number(0, len(term))
        found.append(term[:cut] + end + term[cut:])
    cut = draw.number(0, len(output))
    return found, output[:cut] + ellipsis + output[cut:], ellipsis


def _reduction(draw: Chances) -> tuple[list[str], str]:
    labels = "abcdef"[: draw.number(0 if draw.chance(10) else 1, 5)]
    term = list(labels)
    if term and draw.chance(10):
        term.append(draw.one(term))
    output = [label for label in labels if draw.chance(45)]
    return ["".join(draw.shuffled(term))], "".join(draw.shuffled(output))


def _combination(draw: Chances, verb: Verb) -> tuple[list[str], str]:
    counts = {Verb.PERMUTE: 1, Verb.BINARY: 2, Verb.TRINARY: 3}
    labels = "abcde"[: draw.number(0 if draw.chance(10) else 1, 5)]
    terms = []
    for _ in range(counts.get(verb) or draw.number(1, 3)):
        term = draw.shuffled(labels)
        if term and draw.chance(35):
            term = term[: draw.number(0, len(term))]
        if term and draw.chance(6):
            term.append(draw.one(term))
        terms.append("".join(term))
    present = [label for label in labels if label in "".join(terms)]
    return terms, "".join(draw.shuffled(present))


# --- extents ------------------------------------------------------------------------------------


def shapes(
    draw: Chances, terms: list[str], output: str, volumes: dict[int, float]
) -> list[tuple[int, ...]]:
    labels = list(dict.fromkeys("".join(terms)))
    extents = {label: draw.one(EXTENTS) for label in labels}
    if draw.chance(15):  # so that one array fits several terms
        extents = dict.fromkeys(labels, draw.number(2, 9))
    most = draw.weighted(volumes)
    while prod(extents.values()) * prod(extents[x] for x in output[len(set(output)) :]) > most:
        longest = draw.one([label for label in labels if extents[label] > 1])
        extents[longest] = max(1, extents[longest] * 2 // 3)
    if labels and draw.chance(4):
        extents[draw.one(labels)] = 0
    return [_shape(draw, term, extents) for term in terms]


def _shape(draw: Chances, term: str, extents: dict[str, int]) -> tuple[int, ...]:
    """Some extents are 1 and broadcast, not on a diagonal."""
    return tuple(1 if term.count(x) == 1 and draw.chance(4) else extents[x] for x in term)
