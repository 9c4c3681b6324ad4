"""torch tensors in every verb, in place and with gradients, against torch itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct

torch = pytest.importorskip("torch")
F64, C128 = torch.float64, torch.complex128

# torch compiles a helper of its own at the first use of forward mode
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture
def made(rng: np.random.Generator) -> Callable[..., Any]:
    """Random tensors of a shape and type."""

    def make(*shape: int, dtype: Any = F64, gradient: bool = False) -> Any:
        parts = rng.standard_normal((2, *shape))
        values = torch.tensor(parts[0] + 1j * parts[1], dtype=C128)
        values = values if dtype.is_complex else values.real.clone()
        return values.to(dtype).requires_grad_(gradient)

    return make


VERBS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "contract": (lambda a, b, **o: ct.contract("ij,jk->ik", a, b, **o), lambda a, b: a @ b),
    "expression": (
        lambda a, b, **o: ct.contract_expression("ij,jk->ik", a.shape, b.shape, dtype=a.dtype)(
            a, b, **o
        ),
        lambda a, b: a @ b,
    ),
    "einsum": (lambda a, b, **o: ct.einsum("ij,jk->ik", a, b, **o), lambda a, b: a @ b),
    "permute": (lambda a, b, **o: ct.permute("ij->ji", a, alpha=2, **o), lambda a, b: 2 * a.T),
    "reduce": (lambda a, b, **o: ct.reduce("ij->j", a, **o), lambda a, b: a.sum(0)),
    "binary": (
        lambda a, b, **o: ct.elementwise_binary("ij,ji->ij", a, b, op="mul", **o),
        lambda a, b: a * b.T,
    ),
    "trinary": (
        lambda a, b, **o: ct.elementwise_trinary("ij,ji,ij->ij", a, b, a, **o),
        lambda a, b: a + b.T + a,
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_tensors_in_and_out(verb: str, made: Callable[..., Any]) -> None:
    call, wanted = VERBS[verb]
    a, b = made(3, 4), made(4, 3)
    for _ in range(2):  # planned, then cached
        found = call(a, b)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, wanted(a, b))


@pytest.mark.parametrize("verb", VERBS)
def test_out_is_written_in_place(verb: str, made: Callable[..., Any]) -> None:
    call, wanted = VERBS[verb]
    a, b = made(3, 4), made(4, 3)
    memory = torch.full((*wanted(a, b).shape, 2), 7.0, dtype=F64)
    out = memory[..., 0]
    address = out.data_ptr()
    assert call(a, b, out=out) is out
    torch.testing.assert_close(out, wanted(a, b))
    assert out.data_ptr() == address
    assert (memory[..., 1] == 7).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int32", "uint8"])
def test_types(dtype: str, made: Callable[..., Any]) -> None:
    kind = getattr(torch, dtype)
    values = made(5, 4, dtype=kind) if kind.is_floating_point or kind.is_complex else None
    x = torch.arange(20).reshape(5, 4).to(kind) if values is None else values
    found = ct.contract("ij,kj->ik", x, x)
    assert found.dtype is kind
    wide = C128 if kind.is_complex else F64
    wanted = torch.einsum("ij,kj->ik", x.to(wide), x.to(wide))
    if values is None:
        assert torch.equal(found, wanted.to(torch.int64).to(kind))
    else:
        tolerance = 2 * torch.finfo(kind).eps * float(wanted.abs().max())
        assert (found.to(wide) - wanted).abs().max() <= tolerance


def test_strides_and_ranks(made: Callable[..., Any]) -> None:
    x = made(6, 8)[::2, 1::3]
    torch.testing.assert_close(ct.contract("ij,kj->ik", x, x), x @ x.T)
    wide = made(3, 1).expand(3, 4)
    torch.testing.assert_close(ct.contract("ij->i", wide), wide.sum(1))
    scalar = made()
    torch.testing.assert_close(ct.contract(",i->i", scalar, x[0]), scalar * x[0])
    assert ct.einsum("ij->", x).shape == ()
    assert ct.contract("ij,kj->ik", x[:0], x).shape == (0, 3)
    assert (ct.contract("ij,kj->ik", x[:, :0], x[:, :0]) == 0).all()


def test_memory_is_shared(made: Callable[..., Any]) -> None:
    """Operands are read where they lie; nobody copies the result."""
    a = made(3, 4)
    view = ct.Handle().arrays.as_array(a)
    assert view.ctypes.data == a.data_ptr()
    assert view.flags.writeable
    found = ct.permute("ij->ij", a, order="C")
    assert not found.untyped_storage().resizable()  # NumPy's memory, not torch's


def test_lazy_conjugates_and_negatives(made: Callable[..., Any]) -> None:
    z, w = made(3, 3, dtype=C128), made(3, 3, dtype=C128)
    assert z.conj().is_conj()
    torch.testing.assert_close(ct.contract("ij,jk->ik", z.conj(), w.mH), z.conj() @ w.mH)
    twice = ct.contract("ij,jk->ik", z.conj(), w, operators=("conj", None))
    torch.testing.assert_close(twice, z @ w)
    added = ct.contract("ij,jk->ik", z, w, c=w.conj(), beta=2)
    torch.testing.assert_close(added, z @ w + 2 * w.conj())
    negative = z.conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(ct.contract("ij,jk->ik", negative, w.real), negative @ w.real)
    torch.testing.assert_close(ct.einsum("ij,kj", z.conj(), w), z.conj() @ w.T)
    out = z.conj()
    with pytest.raises(ct.NotSupportedError, match="resolve_conj"):
        ct.contract("ij,jk->ik", w, w, out=out)


def test_scalars_c_and_numbers_beside_tensors(made: Callable[..., Any]) -> None:
    a, b, c = made(3, 4), made(4, 3), made(3, 3)
    found = ct.contract("ij,jk->ik", a, b, alpha=2, beta=0.5, c=c)
    torch.testing.assert_close(found, 2 * a @ b + 0.5 * c)
    torch.testing.assert_close(ct.contract("ij,->ij", a, 3.0), 3 * a)
    weights = torch.arange(1, 5, dtype=F64)
    torch.testing.assert_close(ct.contract("ij,j->i", a, weights.tolist()), a @ weights)


def test_other_ways_in(made: Callable[..., Any]) -> None:
    a, b = made(3, 4), made(4, 3)
    torch.testing.assert_close(ct.contract(a, "ij", b, ["j", "k"], ["i", "k"]), a @ b)
    torch.testing.assert_close(ct.contract_trinary("ij,jk,kl->il", a, b, a), a @ b @ a)
    torch.testing.assert_close(ct.tensordot(a, b, 1), a @ b)
    assert ct.transpose(a).data_ptr() == a.data_ptr()
    torch.testing.assert_close(ct.transpose(a, (1, 0)), a.T)
    x = made(2, 4, 3, 3)
    torch.testing.assert_close(ct.convert_layout(x, "NCHW", "NHWC"), x.permute(0, 2, 3, 1))
    assert ct.permute("ij->ji", a, dtype=torch.float32).dtype is torch.float32
    assert ct.einsum("ij->ij", a.float(), dtype=F64).dtype is F64


def test_an_expression_with_a_constant(made: Callable[..., Any]) -> None:
    a, b = made(3, 4), made(4, 3, gradient=True)
    planned = ct.contract_expression("ij,jk->ik", (3, 4), b, constants=[1])
    for _ in range(2):
        torch.testing.assert_close(planned(a), a @ b)
    planned(a).sum().backward()
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand(4, 3))
    with pytest.raises(ct.InvalidValueError, match="shape \\(3, 4\\): it has \\(4, 3\\)"):
        planned(b.detach())
    with pytest.raises(ct.UnsupportedTypeError, match="type float64: it has float32"):
        planned(a.float())


def test_constants_that_require_gradients_are_not_multiplied_ahead(
    made: Callable[..., Any],
) -> None:
    a, b, c = made(2, 3), made(3, 4, gradient=True), made(4, 2, gradient=True)
    planned = ct.contract_expression("ij,jk,kl->il", (2, 3), b, c)
    ours = torch.autograd.grad(planned(a).sum(), (b, c))
    for found, wanted in zip(ours, torch.autograd.grad((a @ b @ c).sum(), (b, c)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_plan_of_descriptors_runs_on_tensors(made: Callable[..., Any]) -> None:
    a, b = made(3, 4), made(4, 3)
    d = torch.zeros(3, 3, dtype=F64)
    with ct.Handle() as handle:
        row = [ct.TensorDescriptor(tuple(x.shape), tuple(x.stride()), "float64") for x in (a, b, d)]
        operation = ct.Contraction(
            inputs=(ct.Operand(row[0], "ij"), ct.Operand(row[1], "jk")),
            output=ct.Operand(row[2], "ik"),
        )
        handle.contract(handle.plan(operation), 1, a, b, 0, None, d)
    torch.testing.assert_close(d, a @ b)


# --- refusals ---------------------------------------------------------------------------------


def test_kinds_do_not_mix(made: Callable[..., Any]) -> None:
    a, x = made(3, 3), np.eye(3)
    for pair in ((a, x), (x, a)):
        for verb in (ct.contract, ct.einsum):
            with pytest.raises(ct.InvalidValueError, match="a torch tensor on cpu") as refused:
                verb("ij,jk->ik", *pair)
            assert "a NumPy array" in str(refused.value)
    for given in ({"out": np.empty((3, 3))}, {"c": x}):
        with pytest.raises(ct.InvalidValueError, match="is a NumPy array"):
            ct.contract("ij,jk->ik", a, a, **given)
    for given in ({"out": a.clone()}, {"c": a}):
        with pytest.raises(ct.InvalidValueError, match="is a torch tensor on cpu"):
            ct.contract("ij,jk->ik", x, x, **given)


def test_what_has_no_plain_memory(made: Callable[..., Any]) -> None:
    a = made(3, 3)
    for x, said in ((a.to_sparse(), "sparse_coo"), (a.to("meta"), "meta")):
        with pytest.raises(ct.UnsupportedTypeError, match=said):
            ct.contract("ij->i", x)
    with pytest.raises(ct.UnsupportedTypeError, match="float8"):
        ct.contract("ij->i", a.to(torch.float8_e5m2))
    with pytest.raises(ct.InvalidValueError, match="alpha must be a number"):
        ct.contract("ij->i", a, alpha=torch.tensor(2.0))
    with pytest.raises(ct.InvalidValueError, match="no streams"):
        ct.contract("ij->i", a, stream=object())


# --- gradients --------------------------------------------------------------------------------

PRODUCTS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(3, 4), (4, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 4)]),
    ("ii->i", [(3, 3)]),
    ("iij,j->i", [(2, 2, 3), (3,)]),
    ("ij->", [(3, 2)]),
    ("ij,ij->j", [(1, 3), (4, 3)]),
    ("...i,i->...", [(2, 1, 3), (3,)]),
    ("bij,bjk->bik", [(2, 3, 2), (1, 2, 3)]),
    (",->", [(), ()]),
]


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize(("text", "shapes"), PRODUCTS)
def test_gradients_are_those_of_torch_einsum(
    text: str, shapes: list[tuple[int, ...]], dtype: Any, made: Callable[..., Any]
) -> None:
    operands = [made(*shape, dtype=dtype, gradient=True) for shape in shapes]
    found, wanted = ct.contract(text, *operands), torch.einsum(text, *operands)
    torch.testing.assert_close(found, wanted)
    weights = made(*wanted.shape, dtype=dtype)
    ours = torch.autograd.grad(found, operands, weights)
    theirs = torch.autograd.grad(wanted, operands, weights)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference)


def checked(function: Callable[..., Any], *operands: Any, forward: bool = True) -> None:
    """First and second derivatives of both modes, also many at once, against differences."""
    assert torch.autograd.gradcheck(
        function,
        operands,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=forward,
    )
    assert torch.autograd.gradgradcheck(
        function, operands, check_batched_grad=True, check_fwd_over_rev=True
    )


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [("ij,jk->ik", [(2, 3), (3, 2)]), ("ii,ij->j", [(1, 1), (3, 2)]), ("i,ij->ii", [(2,), (2, 3)])],
)
def test_second_derivatives(
    text: str, shapes: list[tuple[int, ...]], dtype: Any, made: Callable[..., Any]
) -> None:
    operands = [made(*shape, dtype=dtype, gradient=True) for shape in shapes]
    checked(lambda *x: ct.contract(text, *x), *operands)


def test_scalars_c_and_conjugates_have_gradients(made: Callable[..., Any]) -> None:
    a, b, c = (made(*s, dtype=C128, gradient=True) for s in ((2, 3), (3, 2), (2, 2)))
    given: dict[str, Any] = {"alpha": 2 - 1j, "beta": 1 + 3j, "operators": ("conj", None, "conj")}
    checked(lambda a, b, c: ct.contract("ij,jk->ik", a, b, c=c, **given), a, b, c)
    # torch cannot conjugate many tangents at once
    checked(
        lambda a, b: ct.contract("ij,jk->ik", a.conj(), b.mH.conj(), alpha=1j),
        *(a, b.T),
        forward=False,
    )


def test_a_real_operand_beside_a_complex_one_has_a_real_gradient(made: Callable[..., Any]) -> None:
    a, b = made(2, 3, gradient=True), made(3, 2, dtype=C128, gradient=True)
    checked(lambda a, b: ct.contract("ij,jk->ik", a, b), a, b)


def test_operators_with_gradients(made: Callable[..., Any]) -> None:
    a, b = made(2, 3, gradient=True), made(3, gradient=True)
    checked(lambda a, b: ct.contract("ij,j->i", a, b, operators=("exp", "sin")), a, b)
    checked(lambda a, b: ct.contract("ij,j->i", a, b, operators=("rcp", "neg")), a, b)
    refused = ct.contract("ij->i", a, operators=("tanh",))
    torch.testing.assert_close(refused, torch.tanh(a).sum(1))
    with pytest.raises(ct.NotSupportedError, match="operand 0 has TANH"):
        refused.sum().backward()


def test_other_verbs_with_gradients(made: Callable[..., Any]) -> None:
    a = made(2, 3, gradient=True)
    checked(lambda a: ct.permute("ij->ji", a, alpha=2), a)
    checked(lambda a: ct.reduce("ij->j", a, operators=("exp",)), a)
    checked(lambda a: ct.einsum("ij,kj", a, a), a)
    checked(lambda a: ct.contract_expression("ij,kj->ik", a.shape, a.shape)(a, a), a)
    for result in (
        ct.reduce("ij->j", a, op="max"),
        ct.elementwise_binary("ij,ij->ij", a, a, op="mul"),
        ct.permute("ij->ji", a, padding=((0, 1), (0, 0))),
    ):
        with pytest.raises(ct.NotSupportedError, match="have derivatives"):
            result.sum().backward()


def test_no_gradient_is_lost(made: Callable[..., Any]) -> None:
    a, x = made(3, 3, gradient=True), made(3, 3, 1, 1, gradient=True)
    with pytest.raises(ct.NotSupportedError, match="exclude each other"):
        ct.contract("ij,jk->ik", a, a, out=torch.empty(3, 3, dtype=F64))
    with pytest.raises(ct.NotSupportedError, match="gradient would be lost"):
        ct.contract("ij,jk->ik", a.detach(), a.detach(), out=a)
    with pytest.raises(ct.NotSupportedError, match="gradient would be lost"):
        ct.convert_layout(x, "NCHW", "NHWC")
    with torch.no_grad():
        assert not ct.contract("ij,jk->ik", a, a).requires_grad


def test_gradients_are_planned_once(made: Callable[..., Any]) -> None:
    """A second backward finds all its plans."""
    with ct.Handle() as handle:

        def step() -> None:
            a, b = made(3, 4, gradient=True), made(4, 2, gradient=True)
            ct.contract("ij,jk->ik", a, b, handle=handle).sum().backward()

        step()
        known = len(handle.plans)
        assert known >= 3
        step()
        assert len(handle.plans) == known
