"""torch.func, torch.compile and graphs: calls are transformed and traced as torch's own are."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct

torch = pytest.importorskip("torch")
F64, C128 = torch.float64, torch.complex128
func: Any = torch.func

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
Product = Callable[..., Any]  # torch.einsum, or a verb with its arguments


def drawn(rng: np.random.Generator) -> tuple[str, list[tuple[int, ...]]]:
    """An expression with repeated, lone, batched and broadcast modes, and shapes."""
    extents = {letter: int(rng.integers(1, 4)) for letter in "abcde"}
    terms, shapes = [], []
    for _ in range(rng.integers(1, 4)):
        letters = [str(x) for x in rng.choice(list(extents), rng.integers(0, 4))]
        single = {x for x in letters if rng.random() < 0.15}
        terms.append("".join(letters))
        shapes.append(tuple(1 if x in single else extents[x] for x in letters))
    used = sorted(set("".join(terms)))
    output = [str(x) for x in rng.permutation(used)][: rng.integers(0, len(used) + 1)]
    return f"{','.join(terms)}->{''.join(output)}", shapes


def tensors(rng: np.random.Generator, shapes: list[tuple[int, ...]], dtype: Any) -> list[Any]:
    parts = [rng.standard_normal((2, *shape)) for shape in shapes]
    values = [torch.tensor(x[0] + 1j * x[1], dtype=C128) for x in parts]
    return values if dtype is C128 else [x.real.clone() for x in values]


def agree(call: Callable[[Product], Any]) -> None:
    """The same of ours as of torch.einsum."""
    torch.testing.assert_close(call(ct.contract), call(torch.einsum))
    torch.testing.assert_close(call(ct.einsum), call(torch.einsum))


def energy(x: Any) -> Any:
    """A curved real function of a result."""
    return ((x * x.conj()).real ** 2).sum()


# --- torch.func -------------------------------------------------------------------------------

SEEDS = range(12)


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("seed", SEEDS)
def test_first_derivatives(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    text, shapes = drawn(rng)
    x, t = tensors(rng, shapes, dtype), tensors(rng, shapes, dtype)
    at = tuple(range(len(x)))
    g = tensors(rng, [torch.einsum(text, *x).shape], dtype)[0]
    agree(lambda f: func.grad(lambda *x: energy(f(text, *x)), at)(*x))
    agree(lambda f: func.jvp(lambda *x: f(text, *x), tuple(x), tuple(t)))
    agree(lambda f: func.vjp(lambda *x: f(text, *x), *x)[1](g))
    agree(lambda f: func.jvp(lambda y: f(text, y, *x[1:]), (x[0],), (t[0],))[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_jacobians_and_hessians(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    text, shapes = drawn(rng)
    x = tensors(rng, shapes, F64)
    at = tuple(range(len(x)))
    agree(lambda f: func.jacrev(lambda *x: f(text, *x), at)(*x))
    agree(lambda f: func.jacfwd(lambda *x: f(text, *x), at)(*x))
    agree(lambda f: func.hessian(lambda *x: energy(f(text, *x)), at)(*x))


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("seed", SEEDS)
def test_batches(seed: int, dtype: Any) -> None:
    """Each operand batched at any axis or not at all; then twice, and with gradients."""
    rng = np.random.default_rng(200 + seed)
    text, shapes = drawn(rng)
    rank = len(text) - text.index("->") - 2
    axes = [None if rng.random() < 0.4 else int(rng.integers(len(s) + 1)) for s in shapes]
    axes[0] = 0 if all(axis is None for axis in axes) else axes[0]
    many = [s if at is None else (*s[:at], 3, *s[at:]) for s, at in zip(shapes, axes, strict=True)]
    x, place = tensors(rng, many, dtype), int(rng.integers(rank + 1))
    agree(lambda f: func.vmap(lambda *x: f(text, *x), tuple(axes), place)(*x))
    slopes = tuple(range(len(x)))
    agree(lambda f: func.vmap(func.grad(lambda *x: energy(f(text, *x)), slopes), tuple(axes))(*x))
    inner = func.vmap(lambda f, *x: f(text, *x), (None, *axes))
    agree(lambda f: func.vmap(lambda y: inner(f, y, *x[1:]))(torch.stack([x[0], 2 * x[0]])))


OPTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "c": lambda a, b, c: ct.contract("ij,jk->ik", a, b, c=c, alpha=2, beta=0.5),
    "row-major": lambda a, b, c: ct.contract("ij,jk->ik", a, b, c=c, order="C"),
    "as operands": lambda a, b, c: ct.contract("ij,jk->ik", a, b, c=c, order="A"),
    "operators": lambda a, b, c: ct.contract(
        "ij,jk->ik", a, b, c=c, operators=("sin", "exp", "neg")
    ),
    "labels": lambda a, b, c: ct.contract(
        a, ["x", 1], b, [1, ("y", 2)], ["x", ("y", 2)], c=c, slices={1: 2}
    ),
    "diagonal": lambda a, b, c: ct.contract("ij,jk->ii", a, b) + c,
    "expression": lambda a, b, c: ct.contract_expression("ij,jk->ik", a.shape, b.shape)(a, b, c=c),
    "tensordot": lambda a, b, c: ct.tensordot(a, b, 1) + c,
    "sum": lambda a, b, c: ct.reduce("ij->j", a @ b, c=c[0], beta=3),
    "permutation": lambda a, b, c: ct.permute("ij->ji", a, alpha=2) + c[:1],
    "narrow": lambda a, b, c: ct.permute("ij->ji", a, dtype=torch.float32).double() + b,
    "path": lambda a, b, c: ct.contract("ij,jk,kl->il", a, b, c, optimize=[(1, 2), (0, 1)]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_verbs_and_options(name: str, rng: np.random.Generator) -> None:
    call = OPTIONS[name]
    a, b, c = tensors(rng, [(3, 3), (3, 3), (3, 3)], F64)

    wanted = torch.autograd.functional.jacobian(call, (a, b, c))  # a row after the other
    for transform in (func.jacrev, func.jacfwd):
        torch.testing.assert_close(transform(call, (0, 1, 2))(a, b, c), wanted)
    (many,) = tensors(rng, [(4, 3, 3)], F64)
    for at in range(3):
        axes = [0 if each == at else None for each in range(3)]
        x = [[one if each == at else (a, b, c)[each] for each in range(3)] for one in many]
        given = [many if each == at else (a, b, c)[each] for each in range(3)]
        found = func.vmap(call, tuple(axes))(*given)
        torch.testing.assert_close(found, torch.stack([call(*y) for y in x]))
    torch.testing.assert_close(
        func.vmap(call, 2)(*[many.permute(1, 2, 0)] * 3), each_of(call, many)
    )


def each_of(call: Callable[..., Any], many: Any) -> Any:
    return torch.stack([call(x, x, x) for x in many])


def test_a_batch_has_the_layout_of_its_parts(rng: np.random.Generator) -> None:
    (x,) = tensors(rng, [(5, 3, 4)], F64)
    assert func.vmap(lambda y: ct.contract("ij->ij", y))(x)[0].stride() == (1, 3)
    assert func.vmap(lambda y: ct.contract("ij->ij", y, order="f"))(x)[0].stride() == (1, 3)
    assert func.vmap(lambda y: ct.contract("ij->ij", y, order="C"))(x)[0].stride() == (4, 1)
    across = x.mT.contiguous().mT
    assert func.vmap(lambda y: ct.contract("ij->ij", y, order="a"))(across)[0].stride() == (1, 3)


@pytest.mark.parametrize("seed", range(3))
def test_elementwise_verbs_in_batches(seed: int, rng: np.random.Generator) -> None:
    a, b = tensors(rng, [(4, 2, 3), (2, 3)], F64)
    for call in (
        lambda a: ct.elementwise_binary("ij,ij->ji", a, b, op="mul", gamma=3),
        lambda a: ct.elementwise_trinary("ij,ij,j->ji", a, b, b[0], op_ab="max"),
        lambda a: ct.reduce("ij->j", a, op="max"),
        lambda a: ct.permute("ij->ji", a, padding=((1, 2), (0, 1)), padding_value=7),
    ):
        torch.testing.assert_close(func.vmap(call)(a), torch.stack([call(x) for x in a]))


def test_transforms_stack(rng: np.random.Generator) -> None:
    a, b = tensors(rng, [(3, 3), (3, 3)], F64)
    agree(lambda f: func.jvp(func.grad(lambda x: energy(f("ij,jk", x, x))), (a,), (b,))[1])
    agree(
        lambda f: func.grad(lambda y: energy(func.grad(lambda x: energy(f("ij,jk", x, y)))(y)))(a)
    )
    agree(lambda f: func.jacrev(func.vmap(lambda x: f("i,j,ij", x, x, b)))(a))
    leaf = a.clone().requires_grad_()

    def outer(f: Product) -> Any:
        """A gradient of torch's engine through one of torch.func's."""
        inner = func.grad(lambda x: energy(f("ij,jk", x, leaf)))(b)
        return torch.autograd.grad(inner.sum(), leaf)

    agree(outer)


def test_tensors_outlive_their_transform(rng: np.random.Generator) -> None:
    a, b = tensors(rng, [(3, 3), (3, 3)], F64)
    kept: list[Any] = []
    func.grad(lambda x: (kept.append(x), energy(x))[1])(a)
    torch.testing.assert_close(ct.contract("ij,jk->ik", kept[0], b), a @ b)


# --- forward mode ------------------------------------------------------------------------------


def test_tangents(rng: np.random.Generator) -> None:
    a, t, b = tensors(rng, [(3, 3)] * 3, C128)
    mode = torch.autograd.forward_ad
    with mode.dual_level():
        found = mode.unpack_dual(ct.contract("ij,jk->ik", mode.make_dual(a, t), b.conj()))
        torch.testing.assert_close(found.tangent, t @ b.conj())
        torch.testing.assert_close(found.primal, a @ b.conj())
        with pytest.raises(ct.NotSupportedError, match="exclude each other"):
            ct.contract("ij,jk->ik", mode.make_dual(a, t), b, out=torch.empty_like(a))


# --- graphs ------------------------------------------------------------------------------------


def compiled(call: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True, backend=backend, **options)


COMPILED = {**OPTIONS, "einsum": lambda a, b, c: ct.einsum("ij,jk", a, b, optimize="greedy") + c}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_calls(name: str, rng: np.random.Generator) -> None:
    """Values, layouts and gradients, of the whole as one graph."""
    call = COMPILED[name]
    made = compiled(lambda a, b, c: call(a, b, c))
    for _ in range(2):
        x = [y.requires_grad_() for y in tensors(rng, [(3, 3)] * 3, F64)]
        found, wanted = made(*x), call(*x)
        torch.testing.assert_close(found, wanted)
        ours = torch.autograd.grad(energy(found), x, allow_unused=True)
        torch.testing.assert_close(ours, torch.autograd.grad(energy(wanted), x, allow_unused=True))


def test_a_graph_for_many_shapes(rng: np.random.Generator) -> None:
    counts = []

    def counting(graph: Any, inputs: Any) -> Any:
        counts.append(graph)
        return graph.forward

    made = compiled(lambda a, b: ct.contract("ij,jk->ki", a, b) + 1, counting, dynamic=True)
    for n in (3, 4, 5):
        a, b = tensors(rng, [(n, n + 1), (n + 1, 2 * n)], F64)
        torch.testing.assert_close(made(a, b), (a @ b).T + 1)
    assert len(counts) == 1
    learnt = compiled(lambda a, b: ct.contract("ij,jk->ki", a, b), dynamic=True)
    for n in (3, 4):
        x = [y.requires_grad_() for y in tensors(rng, [(n, n + 1), (n + 1, 2 * n)], F64)]
        found = torch.autograd.grad(energy(learnt(*x)), x)
        torch.testing.assert_close(found, torch.autograd.grad(energy(x[0] @ x[1]), x))


def test_constants_of_an_expression_in_a_graph(rng: np.random.Generator) -> None:
    a, b, c = tensors(rng, [(3, 4), (4, 3), (3, 2)], F64)
    weight = b.clone().requires_grad_()
    product = ct.contract_expression("ij,jk,kl->il", (3, 4), weight, c)
    made = compiled(lambda a: product(a, alpha=2).sin())
    torch.testing.assert_close(made(a), (2 * a @ b @ c).sin())
    (found,) = torch.autograd.grad(made(a).sum(), weight)
    torch.testing.assert_close(
        found, torch.autograd.grad(product(a, alpha=2).sin().sum(), weight)[0]
    )


def test_compiled_transforms(rng: np.random.Generator) -> None:
    (a,) = tensors(rng, [(3, 3)], F64)

    def loss(x: Any) -> Any:
        return energy(ct.contract("ij,ik->jk", x, x))

    for transform in (func.grad, func.jacfwd, func.hessian, lambda f: func.vmap(func.grad(f))):
        x = a if transform in (func.grad, func.jacfwd, func.hessian) else a.expand(2, 3, 3)
        torch.testing.assert_close(compiled(transform(loss))(x), transform(loss)(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_calls_are_no_constants(mode: str, rng: np.random.Generator) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b, c = tensors(rng, [(3, 4), (4, 5), (3, 5)], F64)
    for call in (
        lambda a, b, c: ct.contract("ij,jk->ik", a, b, c=c),
        lambda a, b, c: ct.permute("ij->ji", a, padding=((0, 1), (1, 0))),
        lambda a, b, c: ct.elementwise_binary("ij,ij->ij", a, a),
        lambda a, b, c: func.grad(lambda a: energy(ct.einsum("ij,jk", a, b) + c))(a),
        lambda a, b, c: func.vmap(lambda a: ct.contract("j,jk->k", a, b))(a),
    ):
        traced = make_fx(call, tracing_mode=mode)(a, b, c)
        x = 2 * a, b + 1, c
        torch.testing.assert_close(traced(*x), call(*x))


def test_recorded_calls_are_no_constants(rng: np.random.Generator) -> None:
    a, b = tensors(rng, [(3, 4), (4, 5)], F64)
    recorded = torch.jit.trace(lambda a, b: ct.contract("ij,jk->ik", a, b), (a, b))
    torch.testing.assert_close(recorded(2 * a, b), 2 * a @ b)


class Layer(torch.nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Any) -> Any:
        return ct.contract("bi,ij->bj", x, self.weight, alpha=2)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs(strict: bool, rng: np.random.Generator, tmp_path: Any) -> None:
    x, weight = tensors(rng, [(4, 3), (3, 2)], F64)
    layer = Layer(weight)
    sizes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(layer, (x,), dynamic_shapes=sizes, strict=strict)
    torch.export.save(program, tmp_path / "program.pt2")
    found = torch.export.load(tmp_path / "program.pt2").module()
    torch.testing.assert_close(found(x[:2]), layer(x[:2]))
    found(x).sum().backward()
    layer(x).sum().backward()
    torch.testing.assert_close(next(found.parameters()).grad, layer.weight.grad)


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_operator_keeps_torchs_rules(
    dtype: Any, gradient: bool, rng: np.random.Generator
) -> None:
    func.vmap(lambda x: ct.einsum("i->", x))(torch.ones(1, 1))  # defines the operator
    a, b, c = (x.requires_grad_(gradient) for x in tensors(rng, [(3, 4), (4, 5), (3, 5)], dtype))
    for request, operands, addend in (
        ('{"expression": "ij,jk->ik"}', [a, b], None),
        ('{"expression": "ij,jk->ik", "order": "C"}', [a, b], c),
        (
            '{"expression": [[[0, 1], [1, 2]], [2, 0]], "operators": ["CONJ", "IDENTITY"]}',
            [a, b],
            None,
        ),
        ('{"expression": "ij->j", "form": {"Reducing": {"operator": "ADD"}}}', [a], None),
    ):
        arguments = operands, addend, request, 2, 0 if addend is None else 0.5, 0
        torch.library.opcheck(torch.ops.contract.evaluate.default, arguments)


@pytest.mark.parametrize(
    "lines",
    [
        "import torch, contract; torch.ops.contract.evaluate",
        "import contract, torch; f = torch.compile(lambda x: contract.einsum('ii->i', x) + 1, "
        "fullgraph=True, backend='aot_eager'); assert (f(torch.eye(3)) == 2).all()",
    ],
)
def test_either_is_imported_first(lines: str) -> None:
    subprocess.run([sys.executable, "-c", lines], check=True)


# --- refusals -----------------------------------------------------------------------------------


def test_what_a_graph_cannot_hold(rng: np.random.Generator) -> None:
    a, b = tensors(rng, [(3, 3), (3, 3)], F64)

    def refused(said: str, **options: Any) -> None:
        with pytest.raises(ct.NotSupportedError, match=said):
            func.grad(lambda x: ct.contract("ij,jk->", x, b, **options))(a)

    refused("exclude each other", out=torch.empty((), dtype=F64))
    refused("no handle of its own", handle=ct.Handle())
    refused("cannot hold the optimize", optimize=lambda *_: [(0, 1)])
    with pytest.raises(ct.NotSupportedError, match="has no elements"):
        func.vmap(lambda x: ct.convert_layout(x, "NCHW", "NHWC"))(torch.ones(2, 1, 1, 2, 2))
    with pytest.raises(ct.NotSupportedError, match="exclude each other"):
        func.vmap(lambda x: ct.contract("ij->ij", b, out=x))(torch.ones(2, 3, 3))
    with pytest.raises(ct.NotSupportedError, match="has TANH"):
        func.jvp(lambda x: ct.contract("ij->i", x, operators=("tanh",)), (a,), (b,))


def test_rules_are_checked_while_tracing(rng: np.random.Generator) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a = torch.empty(3, 4, dtype=F64)
        assert ct.contract("ij,kj->ik", a, a).stride() == (1, 3)
        with pytest.raises(ct.InvalidValueError, match="Extent mismatch for mode 'j'"):
            ct.contract("ij,jk->ik", a, a)
        with pytest.raises(ct.UnsupportedTypeError, match="TANH"):
            ct.contract("ij->i", a.to(torch.int64), operators=("tanh",))
