"""Products of constants alone, computed once: what is left is a shorter expression."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.api.evaluation import Asked, evaluate
from contract.api.request import Options, Written, path_of, resolve_notation
from contract.arrays.protocol import Array, Layout
from contract.descriptors.compute_types import accumulator
from contract.descriptors.expression import Expression, mode_extents
from contract.planner.paths import Pair, pairs_of
from contract.session.handle import Handle

__all__ = ["Folded", "fold"]


@dataclass(frozen=True, slots=True)
class Folded:
    """An expression of operands that are left (``kept``: their positions), then of ``constants``.

    ``options`` have the path and the operators for these.
    """

    written: Written
    options: Options
    kept: tuple[int, ...]
    constants: tuple[Array, ...]


def fold(
    handle: Handle,
    written: Written,
    layouts: Sequence[Layout],
    constants: Mapping[int, Array],
    options: Options,
) -> Folded:
    """The expression with every product of constants alone replaced by its value.

    The order of the products is that of the whole expression. Nothing is replaced where a value
    would be rounded to less than the type it is summed in, nor where memory is limited or modes
    are sliced: values are as large as they are.
    """
    count = len(layouts)
    whole = Folded(written, options, tuple(range(count)), ())
    limited = options.memory_limit is not None or options.slices is not None
    if limited or not 1 < len(constants) < count or not _is_exact(layouts):
        return whole
    if handle.arrays.capturing():
        return whole
    network = _Network.of(written, layouts, replace(options, optimize=path_of(handle, options)))
    tops = network.products_of(constants)
    if not tops:
        return whole
    values: list[Array] = []

    def work() -> None:
        values.extend(network.value(handle, constants, top) for top in tops)

    with handle.arrays.on(None):
        handle.executor.timed(work).wait()  # calls may be on other streams
    inside = {leaf for top in tops for leaf in network.leaves(top)}
    kept = tuple(at for at in range(count) if at not in inside)
    left = (*kept, *tops)
    text = network.written(left, network.expression.output)
    return Folded(text, network.options(left), kept, tuple(values))


def _is_exact(layouts: Sequence[Layout]) -> bool:
    """Whether products of these operands are stored as they are summed."""
    types = {layout.dtype.name for layout in layouts}
    return len(types) == 1 and {accumulator(x) for x in types} == types


@dataclass(frozen=True, slots=True)
class _Network:
    """An expression as pairs: operands are 0..N-1, the result of the i-th pair is N+i."""

    expression: Expression
    pairs: tuple[Pair, ...]
    whole: Options

    @classmethod
    def of(cls, written: Written, layouts: Sequence[Layout], options: Options) -> "_Network":
        shapes = [layout.shape for layout in layouts]
        expression = resolve_notation(written, shapes)
        extents = mode_extents(expression.inputs, shapes, expression.labels)
        terms = [frozenset(modes) for modes in expression.inputs]
        pairs = pairs_of(terms, frozenset(expression.output), extents, options.optimize)
        return cls(expression, pairs, options)

    @property
    def count(self) -> int:
        """How many operands there are."""
        return len(self.expression.inputs)

    def modes(self, node: int) -> tuple[int, ...]:
        """The modes of an operand or a result."""
        if node < self.count:
            return self.expression.inputs[node]
        return tuple(sorted(self.pairs[node - self.count].modes))

    def leaves(self, node: int) -> tuple[int, ...]:
        """The operands that go into a result."""
        if node < self.count:
            return (node,)
        pair = self.pairs[node - self.count]
        return (*self.leaves(pair.left), *self.leaves(pair.right))

    def products_of(self, constants: Collection[int]) -> list[int]:
        """The results that only constants go into, and that go into none of these."""
        fixed = set(constants)
        found: set[int] = set()
        for node, pair in enumerate(self.pairs, self.count):
            if {pair.left, pair.right} <= fixed:
                fixed.add(node)
                found = (found - {pair.left, pair.right}) | {node}
        return sorted(found)

    def value(self, handle: Handle, constants: Mapping[int, Array], node: int) -> Array:
        """The result ``node``, of constants alone."""
        leaves = self.leaves(node)
        options = replace(self.options(leaves), order="K", memory_limit=None)
        text = self.written(leaves, self.modes(node))
        return evaluate(Asked(handle, text, options), [constants[at] for at in leaves])

    def written(self, operands: Sequence[int], output: tuple[int, ...]) -> Written:
        """The interleaved form, under the labels that were written where these are distinct."""
        labels: Sequence[Hashable] = self.expression.labels
        names = labels if len(set(labels)) == len(labels) else range(len(labels))
        sublists = tuple(tuple(names[mode] for mode in self.modes(at)) for at in operands)
        return sublists, tuple(names[mode] for mode in output)

    def options(self, operands: Sequence[int]) -> Options:
        """The options of an expression of these operands: its path, and their operators."""
        operators = self.whole.operators
        if operators is not None:
            operators = tuple(operators[at] if at < self.count else None for at in operands)
        return replace(self.whole, optimize=self._path(operands), operators=operators)

    def _path(self, operands: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The pairs among these operands and their products, by positions."""
        left = list(operands)
        path = []
        for node, pair in enumerate(self.pairs, self.count):
            if pair.left in left and pair.right in left:
                path.append((left.index(pair.left), left.index(pair.right)))
                left = [each for each in left if each not in (pair.left, pair.right)] + [node]
        return tuple(path)
