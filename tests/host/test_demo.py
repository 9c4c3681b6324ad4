"""The demo's physics against wave functions, its checks against engines that err."""

import io
import subprocess
import sys
import time
from itertools import combinations

import numpy as np
import pytest

from contract.cli import demo, neighbours
from contract.cli.demo import numpy_engine, our_engine
from contract.cli.neighbours import Neighbours
from contract.errors import InsufficientWorkspaceError, InvalidValueError

ENGINES = pytest.mark.parametrize("engine", [numpy_engine, our_engine], ids=["numpy", "contract"])


def model(occupied, virtual, seed, strength=0.02):
    """One-electron integrals h, the full <pq||rs>, orbital energies, and the CCD tensors.

    h = diag(e) - sum_i <pi||qi>, so that the Fock matrix is diag(e).
    """
    n = occupied + virtual
    factors = strength * demo.integral_factors(n, np.random.default_rng(seed))
    energies = demo.orbital_energies(occupied, virtual)
    every = slice(None)
    v = demo.block(factors, every, every, every, every)
    h = np.diag(energies) - np.einsum("piqi->pq", v[:, :occupied, :, :occupied])
    return h, v, energies, demo.integrals(factors, energies, occupied)


def random_amplitudes(occupied, virtual, rng):
    t = rng.standard_normal((virtual, virtual, occupied, occupied))
    t = t - t.swapaxes(0, 1)
    return np.asfortranarray(0.1 * (t - t.swapaxes(2, 3)))


def two_electron_hamiltonian(h, v):
    """<pq|H|rs> of the determinants p<q, r<s, by explicit loops over Slater's rules."""
    pairs = list(combinations(range(len(h)), 2))
    matrix = np.zeros((len(pairs), len(pairs)))
    for x, (p, q) in enumerate(pairs):
        for y, (r, s) in enumerate(pairs):
            one = h[p, r] * (q == s) + h[q, s] * (p == r) - h[p, s] * (q == r) - h[q, r] * (p == s)
            matrix[x, y] = one + v[p, q, r, s]
    return pairs, matrix


def annihilators(n):
    """a_p as matrices on all 2^n determinants (Jordan-Wigner)."""
    lower, sign, unit = np.array([[0.0, 1], [0, 0]]), np.diag([1.0, -1]), np.eye(2)
    operators = []
    for p in range(n):
        matrix = np.eye(1)
        for factor in [sign] * p + [lower] + [unit] * (n - p - 1):
            matrix = np.kron(matrix, factor)
        operators.append(matrix)
    return operators


def second_quantised(h, v, a):
    """H = sum h_pq p+ q + 1/4 sum <pq||rs> p+ q+ s r."""
    n = len(h)
    pairs = list(combinations(range(n), 2))
    removed = {(r, s): a[s] @ a[r] for r, s in pairs}
    total = sum(h[p, q] * a[p].T @ a[q] for p in range(n) for q in range(n))
    for p, q in pairs:
        left = sum(v[p, q, r, s] * removed[r, s] for r, s in pairs)
        total = total + removed[p, q].T @ left
    return total


def excitation(t, a, occupied):
    """T = 1/4 sum t_abij a+ b+ j i."""
    virtual = len(a) - occupied
    total = np.zeros_like(a[0])
    for i, j in combinations(range(occupied), 2):
        for b, c in combinations(range(virtual), 2):
            create = a[occupied + b].T @ a[occupied + c].T
            total += t[b, c, i, j] * create @ a[j] @ a[i]
    return total


def applied_exponential(operator, state):
    """exp(T) |state>: the series ends, T is nilpotent."""
    total, power, order = state.copy(), state, 0
    while np.any(power):
        order += 1
        power = operator @ power / order
        total += power
    return total


@ENGINES
@pytest.mark.parametrize("virtual", [2, 3, 5])
def test_two_electrons_ccd_is_cid(engine, virtual):
    h, v, _, tensors = model(2, virtual, seed=virtual, strength=0.25)
    pairs, hamiltonian = two_electron_hamiltonian(h, v)
    kept = [k for k, pair in enumerate(pairs) if len({0, 1} & set(pair)) != 1]
    cid = np.linalg.eigvalsh(hamiltonian[np.ix_(kept, kept)])[0] - hamiltonian[0, 0]
    solution = demo.converge(engine, tensors)
    assert solution.converged
    assert cid < -1e-3
    assert solution.energies[-1] == pytest.approx(cid, abs=1e-9)


@ENGINES
def test_residual_is_the_projected_similarity_transform(engine):
    """R_abij = <abij| exp(-T) H exp(T) |0> for 3 electrons in 7 orbitals, t anything."""
    occupied, virtual = 3, 4
    h, v, _, tensors = model(occupied, virtual, seed=1, strength=0.2)
    t = random_amplitudes(occupied, virtual, np.random.default_rng(2))
    a = annihilators(occupied + virtual)
    reference = np.zeros(len(a[0]))
    reference[0] = 1  # no particle
    for p in reversed(range(occupied)):
        reference = a[p].T @ reference
    hamiltonian, excite = second_quantised(h, v, a), excitation(t, a, occupied)
    image = applied_exponential(-excite, hamiltonian @ applied_exponential(excite, reference))
    expected = np.zeros_like(t)
    for b, c, i, j in np.ndindex(*t.shape):
        doubly = a[occupied + b].T @ (a[occupied + c].T @ (a[j] @ (a[i] @ reference)))
        expected[b, c, i, j] = doubly @ image
    np.testing.assert_allclose(demo.residual(engine, tensors, t), expected, atol=1e-12)
    mean_field = reference @ hamiltonian @ reference
    correlation = reference @ image - mean_field
    assert demo.energy(engine, tensors, t) == pytest.approx(correlation, abs=1e-12)


@ENGINES
def test_residual_equals_the_expanded_equations(engine):
    tensors = demo.workload(demo.DemoOptions(5, 7))
    t = random_amplitudes(5, 7, np.random.default_rng(3))
    expected = demo.expanded_residual(tensors, t)
    np.testing.assert_allclose(demo.residual(engine, tensors, t), expected, rtol=0, atol=1e-13)


@ENGINES
def test_residual_and_solution_are_antisymmetric(engine):
    tensors = demo.workload(demo.DemoOptions(4, 6))
    t = random_amplitudes(4, 6, np.random.default_rng(4))
    solved = demo.converge(engine, tensors).amplitudes
    for x in (demo.residual(engine, tensors, t), solved):
        np.testing.assert_allclose(x, -x.swapaxes(0, 1), atol=1e-13)
        np.testing.assert_allclose(x, -x.swapaxes(2, 3), atol=1e-13)
        assert np.abs(x).max() > 1e-3


def test_relabelled_orbitals_give_relabelled_amplitudes():
    occupied, virtual = 4, 6
    rng = np.random.default_rng(5)
    holes, particles = rng.permutation(occupied), rng.permutation(virtual)
    order = np.concatenate([holes, occupied + particles])
    factors = 0.02 * demo.integral_factors(occupied + virtual, rng)
    energies = demo.orbital_energies(occupied, virtual)
    first = demo.converge(our_engine, demo.integrals(factors, energies, occupied))
    shuffled = demo.integrals(factors[np.ix_(order, order)], energies[order], occupied)
    second = demo.converge(our_engine, shuffled)
    assert second.energies[-1] == pytest.approx(first.energies[-1], abs=1e-10)
    moved = first.amplitudes[np.ix_(particles, particles, holes, holes)]
    np.testing.assert_allclose(second.amplitudes, moved, atol=1e-9)


def test_integrals_have_the_symmetries_of_a_repulsion():
    _, v, energies, tensors = model(3, 5, seed=6)
    for other in (-v.transpose(1, 0, 2, 3), -v.transpose(0, 1, 3, 2), v.transpose(2, 3, 0, 1)):
        np.testing.assert_allclose(v, other, atol=1e-14)
    np.testing.assert_allclose(tensors["ovvo"], v[:3, 3:, 3:, :3], atol=1e-14)
    assert energies[3] - energies[2] == pytest.approx(1)
    assert tensors["gap"].min() >= 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_tensor_is_column_major_and_of_the_type(dtype):
    tensors = demo.workload(demo.DemoOptions(3, 4, dtype))
    known = demo.with_intermediates(our_engine, tensors, tensors["vvoo"])
    assert {x.dtype.name for x in known.values()} == {dtype}
    assert all(x.flags.f_contiguous for x in known.values())


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2), (4, 7)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_small_problems_converge(shape, dtype):
    """With fewer amplitudes than DIIS vectors the extrapolation is singular, and still works."""
    for seed in range(3):
        tensors = demo.workload(demo.DemoOptions(*shape, dtype, seed=seed))
        assert demo.converge(numpy_engine, tensors).converged


def test_diis_weights_cancel_opposite_changes():
    change = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    weights = demo._diis_weights([change, -3 * change])
    np.testing.assert_allclose(weights, [0.75, 0.25], rtol=1e-12)


def test_flops_of_the_particle_ladder():
    term = demo.CONTRIBUTIONS[0]
    v, t = np.zeros((5, 5, 5, 5)), np.zeros((5, 5, 3, 3))
    assert demo._flops(term, v, t) == 2 * 5**4 * 3**2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_report_is_good_and_prints_aligned(dtype):
    report = demo.run(demo.DemoOptions(3, 5, dtype, repeats=1))
    assert report.good
    assert 0 <= report.total.error <= 1
    assert len(report.rows) == 10
    text = demo.render(report)
    table = text.split("\n\n")[1].splitlines()
    assert len({len(line) for line in table}) == 1
    assert text.splitlines()[-1].startswith("All 10 products are within their bounds")
    assert demo.render(report, unicode=False).isascii()


@pytest.mark.parametrize("error", [1e-6, float("nan")])
def test_wrong_products_are_found(monkeypatch, error):
    right = demo.contract

    def wrong(expression, *operands, **options):
        result = right(expression, *operands, **options)
        return result * (1 + error) if expression.startswith("mnef,fbjn") else result

    monkeypatch.setattr(demo, "contract", wrong)
    report = demo.run(demo.DemoOptions(3, 4, repeats=1))
    assert not report.good
    assert demo.verdict(report).startswith("WRONG: ")
    assert "W_mbej errs by" in demo.verdict(report)


def test_missing_convergence_is_said(monkeypatch):
    monkeypatch.setattr(demo, "MAX_ITERATIONS", 2)
    report = demo.run(demo.DemoOptions(3, 4, repeats=1))
    assert not report.good
    assert "NOT converged after 2 iterations" in demo.render(report)
    assert "CCD did not converge" in demo.verdict(report)


@pytest.mark.parametrize("numbers", [(1, 4), (4, 1), (4, 4, "float64", 0)])
def test_impossible_options_are_refused(numbers):
    with pytest.raises(InvalidValueError, match="there are"):
        demo.DemoOptions(*numbers)


def test_more_than_the_machine_has_is_refused():
    with pytest.raises(InsufficientWorkspaceError, match="the machine has"):
        demo.run(demo.DemoOptions(2, 4000))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_one_line_on_terminals_and_silent_elsewhere():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = demo.Progress(stream)
        progress("first")
        progress("second")
        progress.clear()
    assert terminal.getvalue() == "\r\x1b[Kfirst\r\x1b[Ksecond\r\x1b[K"
    assert file.getvalue() == ""


def test_what_others_take_of_the_processor_is_a_share():
    """A child works until it has been noticed; where the system tells nothing, nothing is said."""
    found = Neighbours()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    deadline = time.monotonic() + 30
    while found.share() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.kill()
    child.wait()
    share = found.share()
    assert share is None or 0 < share <= 1


def test_where_the_system_does_not_tell_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setattr(neighbours, "STATISTICS", tmp_path / "nothing")
    assert neighbours.Neighbours().share() is None
