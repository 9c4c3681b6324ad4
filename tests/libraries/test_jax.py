"""JAX arrays in every verb, traced and differentiated, against jax.numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


@pytest.fixture(autouse=True)
def _wide() -> Any:
    """64-bit types in every thread: jax.enable_x64 does not reach those of callbacks."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def made(rng: np.random.Generator) -> Callable[..., Any]:
    """Random arrays of a shape and type."""

    def make(*shape: int, dtype: str = "float64") -> Any:
        parts = rng.standard_normal((2, *shape))
        values = parts[0] + 1j * parts[1]
        return jnp.asarray(values if dtype.startswith("complex") else values.real).astype(dtype)

    return make


def close(found: Any, wanted: Any) -> None:
    assert isinstance(found, jax.Array)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


VERBS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "contract": (lambda a, b: ct.contract("ij,jk->ik", a, b), lambda a, b: a @ b),
    "expression": (
        lambda a, b: ct.contract_expression("ij,jk->ik", a.shape, b.shape)(a, b),
        lambda a, b: a @ b,
    ),
    "einsum": (lambda a, b: ct.einsum("ij,jk->ik", a, b), lambda a, b: a @ b),
    "tensordot": (lambda a, b: ct.tensordot(a, b, 1), lambda a, b: a @ b),
    "transpose": (lambda a, b: ct.transpose(a), lambda a, b: a.T),
    "c": (lambda a, b: ct.contract("ij,kj->ik", a, b.T, c=a[:, :3]), lambda a, b: a @ b + a[:, :3]),
    "permute": (lambda a, b: ct.permute("ij->ji", a, alpha=2), lambda a, b: 2 * a.T),
    "reduce": (lambda a, b: ct.reduce("ij->j", a, op="max"), lambda a, b: a.max(0)),
    "binary": (
        lambda a, b: ct.elementwise_binary("ij,ji->ij", a, b, op="mul"),
        lambda a, b: a * b.T,
    ),
    "trinary": (
        lambda a, b: ct.elementwise_trinary("ij,ji,ij->ij", a, b, a),
        lambda a, b: a + b.T + a,
    ),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_arrays_in_and_out(verb: str, traced: bool, made: Callable[..., Any]) -> None:
    call, wanted = VERBS[verb]
    a, b = made(3, 4), made(4, 3)
    close((jax.jit(call) if traced else call)(a, b), wanted(a, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int32", "bool"])
def test_types(dtype: str, made: Callable[..., Any]) -> None:
    x = (made(4, 5) * 2).astype(dtype) if dtype != "complex64" else made(4, 5, dtype=dtype)
    found = ct.contract("ij->ij", x)
    assert isinstance(found, jax.Array)
    assert found.dtype == x.dtype
    assert bool((found == x).all())


def test_operands_are_read_where_they_lie(made: Callable[..., Any]) -> None:
    a = made(3, 4)
    view = ct.Handle().arrays.as_array(a)
    assert view.ctypes.data == a.unsafe_buffer_pointer()
    assert not view.flags.writeable
    with pytest.raises(ct.InvalidValueError, match="out is read-only"):
        ct.contract("ij->ij", a, out=a)


def test_numpy_arrays_become_jax_arrays(made: Callable[..., Any]) -> None:
    a, x = made(3, 3), np.arange(9.0).reshape(3, 3)[::-1]
    for verb in (ct.contract, ct.einsum):
        close(verb("ij,jk->ik", a, x), a @ x)
        close(verb("ij,jk->ik", x, a), x @ a)
        close(verb("ij,jk,kl->il", x, a, x), x @ a @ x)
        close(jax.jit(lambda a, v=verb: v("ij,jk->ik", x, a))(a), x @ a)
    close(ct.contract("ij->ji", x, c=a), x.T + a)
    close(ct.tensordot(x, a), jnp.tensordot(x, a))
    planned = ct.contract_expression("ij,jk->ik", (3, 3), x, constants=[1])
    close(planned(a), a @ x)
    close(ct.contract_expression("ij,jk->ik", (3, 3), a)(x), x @ a)
    close(jax.grad(lambda a: ct.contract("ij,jk->", x, a))(a), jax.grad(lambda a: (x @ a).sum())(a))
    with pytest.raises(ct.InvalidValueError, match="out is a NumPy array"):
        ct.contract("ij,jk->ik", a, a, out=np.empty((3, 3)))


PRODUCTS: list[tuple[str, list[tuple[int, ...]], str]] = [
    ("ij,jk->ik", [(3, 4), (4, 2)], "float64"),
    ("ij,jk->ik", [(3, 4), (4, 2)], "complex128"),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 4)], "complex128"),
    ("iij,j->i", [(2, 2, 3), (3,)], "float64"),
    ("ij->", [(3, 2)], "float64"),
    ("bij,bjk->bik", [(2, 3, 2), (1, 2, 3)], "float64"),
]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("text", "shapes", "dtype"), PRODUCTS)
def test_gradients_are_those_of_jax_einsum(
    text: str, shapes: list[tuple[int, ...]], dtype: str, traced: bool, made: Callable[..., Any]
) -> None:
    operands = [made(*shape, dtype=dtype) for shape in shapes]
    weights = made(*jnp.einsum(text, *operands).shape, dtype=dtype)

    def gradients(function: Callable[..., Any]) -> Any:
        def loss(*given: Any) -> Any:
            return jnp.sum(jnp.abs(weights * function(text, *given)) ** 2)

        found = jax.grad(loss, tuple(range(len(operands))))
        return (jax.jit(found) if traced else found)(*operands)

    for found, wanted in zip(gradients(ct.contract), gradients(jnp.einsum), strict=True):
        close(found, wanted)


def test_gradients_of_scalars_c_and_conjugates(made: Callable[..., Any]) -> None:
    a, b, c = (made(*s, dtype="complex128") for s in ((2, 3), (3, 2), (2, 2)))

    def ours(a: Any, b: Any, c: Any) -> Any:
        given: dict[str, Any] = {
            "alpha": 2 - 1j,
            "beta": 1 + 3j,
            "operators": ("conj", None, "conj"),
        }
        return ct.contract("ij,jk->ik", a, b, c=c, **given)

    def theirs(a: Any, b: Any, c: Any) -> Any:
        return (2 - 1j) * a.conj() @ b + (1 + 3j) * c.conj()

    close(ours(a, b, c), theirs(a, b, c))
    (_, mine), (_, reference) = jax.vjp(ours, a, b, c), jax.vjp(theirs, a, b, c)
    weights = made(2, 2, dtype="complex128")
    for found, wanted in zip(mine(weights), reference(weights), strict=True):
        close(found, wanted)


def test_second_derivatives_and_vmap(made: Callable[..., Any]) -> None:
    a, b = made(2, 3), made(3, 2)

    def curved(product: Callable[..., Any]) -> Any:
        def slope(a: Any) -> Any:
            return jnp.sum(jax.grad(lambda x: jnp.sum(product(x, b) ** 3))(a) ** 2)

        return jax.grad(slope)(a)

    close(curved(lambda x, y: ct.contract("ij,jk->ik", x, y)), curved(jnp.matmul))
    many = jnp.stack([a, 2 * a])
    close(jax.vmap(lambda x: ct.contract("ij,jk->ik", x, b))(many), many @ b)


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


def agree(call: Callable[[Callable[..., Any]], Any]) -> None:
    """The same of ours as of jax.numpy.einsum, at once and compiled."""
    wanted = jax.tree.leaves(jax.jit(lambda: call(jnp.einsum))())
    for found in (call(ct.contract), jax.jit(lambda: call(ct.einsum))()):
        for mine, reference in zip(jax.tree.leaves(found), wanted, strict=True):
            close(mine, reference)


def energy(x: Any) -> Any:
    """A curved real function of a result."""
    return jnp.sum((x * x.conj()).real ** 2)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("seed", range(5))
def test_derivatives(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    text, shapes = drawn(rng)
    x, t = ([values(rng, s, dtype) for s in shapes] for _ in range(2))
    g, at = values(rng, jnp.einsum(text, *x).shape, dtype), tuple(range(len(x)))
    agree(lambda f: jax.jvp(lambda *x: f(text, *x), x, t))
    agree(lambda f: jax.vjp(lambda *x: f(text, *x), *x)[1](g))
    agree(lambda f: jax.linearize(lambda *x: f(text, *x), *x)[1](*t))
    agree(lambda f: jax.jvp(jax.grad(lambda *x: energy(f(text, *x)), at), x, t)[1])


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev, jax.hessian])
@pytest.mark.parametrize(
    ("text", "shapes"), [("ij,jk->ik", [(2, 3), (3, 2)]), ("iij,j->i", [(2, 2, 1), (3,)])]
)
def test_jacobians_and_hessians(
    transform: Callable[..., Any],
    text: str,
    shapes: list[tuple[int, ...]],
    made: Callable[..., Any],
) -> None:
    x = [made(*shape) for shape in shapes]
    agree(lambda f: transform(lambda *x: f(text, *x) ** 3, (0, 1))(*x))


@pytest.mark.parametrize("seed", range(5))
def test_batches(seed: int) -> None:
    """Each operand batched at any axis or not at all; then twice, and with gradients."""
    rng = np.random.default_rng(100 + seed)
    text, shapes = drawn(rng)
    axes = [None if rng.random() < 0.4 else int(rng.integers(len(s) + 1)) for s in shapes]
    axes[0] = 0 if all(axis is None for axis in axes) else axes[0]
    many = [s if at is None else (*s[:at], 3, *s[at:]) for s, at in zip(shapes, axes, strict=True)]
    x = [values(rng, s, "complex128") for s in many]
    agree(lambda f: jax.vmap(lambda *x: f(text, *x), axes)(*x))
    slope = tuple(range(len(x)))
    agree(lambda f: jax.vmap(jax.grad(lambda *x: energy(f(text, *x)), slope), axes)(*x))
    twice = jnp.stack([x[0], 2 * x[0]])
    agree(lambda f: jax.vmap(lambda y: jax.vmap(lambda *x: f(text, *x), axes)(y, *x[1:]))(twice))


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    parts = rng.standard_normal((2, *shape))
    return jnp.asarray(parts[0] + 1j * parts[1] if dtype == "complex128" else parts[0])


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_in_batches(verb: str, traced: bool, made: Callable[..., Any]) -> None:
    call, wanted = VERBS[verb]
    a, b = made(2, 3, 4), made(4, 3)
    batched = jax.vmap(call, (0, None))
    close((jax.jit(batched) if traced else batched)(a, b), jax.vmap(wanted, (0, None))(a, b))
    many = made(4, 3, 5)
    close(jax.vmap(call, (None, 2))(a[0], many), jax.vmap(wanted, (None, 2))(a[0], many))


def test_a_batch_is_one_call(made: Callable[..., Any]) -> None:
    a, b = made(5, 3, 4), made(4, 3)
    with ct.Handle() as handle:
        jax.jit(jax.vmap(lambda a: ct.contract("ij,jk->ik", a, b, handle=handle)))(a)
        ((operation, _),) = (key for key, _ in handle.plans.items())
        assert operation.output.tensor.extents == (5, 3, 3)


def test_tangents_through_operators_and_c(made: Callable[..., Any]) -> None:
    a, b, c = made(2, 3), made(3, 2), made(2, 2)
    t = made(2, 3), made(3, 2), made(2, 2)

    def ours(a: Any, b: Any, c: Any) -> Any:
        operators = ("sin", "exp", "neg")
        return ct.contract("ij,jk->ik", a, b, c=c, operators=operators, alpha=3, beta=2)

    def theirs(a: Any, b: Any, c: Any) -> Any:
        return 3 * jnp.sin(a) @ jnp.exp(b) - 2 * c

    for found, wanted in zip(
        jax.jvp(ours, (a, b, c), t), jax.jvp(theirs, (a, b, c), t), strict=True
    ):
        close(found, wanted)
    for at in range(3):
        close(jax.jacfwd(ours, at)(a, b, c), jax.jacfwd(theirs, at)(a, b, c))
        close(jax.jacrev(ours, at)(a, b, c), jax.jacrev(theirs, at)(a, b, c))
    batched = jax.vmap(ours, (None, None, 0))(a, b, jnp.stack([c, 2 * c]))
    close(batched, jnp.stack([theirs(a, b, c), theirs(a, b, 2 * c)]))


def test_a_real_operand_beside_a_complex_one(made: Callable[..., Any]) -> None:
    a, b, t = made(2, 3), made(3, 2, dtype="complex128"), made(2, 3)
    agree(lambda f: jax.jvp(lambda a: f("ij,jk->ik", a, b), (a,), (t,)))
    agree(lambda f: jax.grad(lambda a: energy(f("ij,jk->ik", a, b)))(a))


def test_integers_beside_what_is_differentiated(made: Callable[..., Any]) -> None:
    a, n = made(2, 3), jnp.arange(3)
    close(jax.grad(lambda a: ct.contract("ij,j->", a, n))(a), jnp.tile(n * 1.0, (2, 1)))
    none = np.zeros(3, jax.dtypes.float0)
    found = jax.jvp(lambda a, n: ct.contract("ij,j->i", a, n), (a, n), (a, none))
    close(found[1], a @ n)
    _, constant = jax.jvp(lambda n: ct.contract("j->", n), (n,), (none,))
    assert constant.dtype == jax.dtypes.float0


def test_what_cannot_be_differentiated(made: Callable[..., Any]) -> None:
    a = made(3, 3)
    with pytest.raises(ct.NotSupportedError, match="of an elementwise operation"):
        jax.grad(lambda a: ct.elementwise_binary("ij,ij->ij", a, a).sum())(a)
    with pytest.raises(ct.NotSupportedError, match="has TANH"):
        jax.grad(lambda a: ct.contract("ij->", a, operators=("tanh",)))(a)
    with pytest.raises(ct.NotSupportedError, match="exclude each other"):
        jax.grad(lambda a: ct.contract("ij->", a, out=a[0, 0]))(a)
    with pytest.raises(ct.NotSupportedError, match="no elements yet"):
        jax.jit(lambda a: ct.convert_layout(a[None, None], "NCHW", "NHWC"))(a)


def test_large_operands_of_compiled_functions(made: Callable[..., Any]) -> None:
    """JAX calls back from a thread of its own, with arrays that may not be there yet."""
    a = made(700, 700)
    for _ in range(5):
        close(jax.jit(lambda a: ct.contract("ij,jk->ik", a + 1, a))(a), (a + 1) @ a)
