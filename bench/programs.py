"""python -m bench programs: whole programs of other libraries, by NumPy and by us in its place.

Each program runs alternately with either in one process. Compiled kernels are ready; a first run
of ours has everything to plan, later runs find their plans.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import contract
from bench.selection import names_in, selected
from contract.session.plan_cache import Statistics
from contract.support.text import aligned, seconds

__all__ = ["PROGRAMS", "Program", "main", "measured", "replaced"]

Run = Callable[[], Any]  # a whole program; its result is a number or an array
Engine = AbstractContextManager[object]  # in which a program computes with ours


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a library, made once: ``make`` gives its run, and what puts us in place."""

    name: str
    make: Callable[[], tuple[Run, Callable[[], Engine]]]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of the program by NumPy, by us with plans to make, and with plans that are there.

    ``counted`` is what became of the plan cache in the first run.
    """

    name: str
    numpy: float
    first: float
    later: float
    counted: Statistics

    @property
    def row(self) -> tuple[str, ...]:
        """As the table has it."""
        times = (self.numpy, self.first, self.later)
        ratios = (f"{each / self.numpy:.2f}" for each in (self.first, self.later))
        found = self.counted
        counts = (found.misses, found.hits, found.evictions, found.bytes >> 10)
        return (self.name, *map(seconds, times), *ratios, *map(str, counts))


HEAD = ("program", "numpy", "first", "later", "first/numpy", "later/numpy")
COUNTS = ("misses", "hits", "evictions", "kB")


def main(argv: Sequence[str]) -> int:
    """Run the programs whose libraries are there; the exit status is 1 if a result is wrong."""
    asked = _parser().parse_args(argv)
    rows = []
    for program in selected(PROGRAMS, _name, names_in(asked.cases)):
        try:
            run, engine = program.make()
        except ImportError as error:
            print(f"missing: {program.name}: {error}")
            continue
        rows.append(measured(program.name, run, engine, asked.repeat).row)
    print("\n".join(aligned([(*HEAD, *COUNTS), *rows])))
    return 0


def _name(program: Program) -> str:
    return program.name


def measured(name: str, run: Run, engine: Callable[[], Engine], repeat: int) -> Result:
    """Medians of runs by NumPy and by us in turn; ValueError if the results differ."""
    plans = contract.default_handle().plans
    wanted = run()
    with engine():
        found = run()  # kernels are compiled here
    if not np.allclose(found, wanted, rtol=1e-6, atol=1e-9):
        raise ValueError(f"{name}: {found} where NumPy finds {wanted}.")
    times: dict[str, list[float]] = {"numpy": [], "first": [], "later": []}
    for _ in range(repeat):
        times["numpy"].append(_timed(run, nullcontext()))
        plans.clear()
        before = plans.statistics
        times["first"].append(_timed(run, engine()))
        counted = _since(plans.statistics, before)
        times["numpy"].append(_timed(run, nullcontext()))
        times["later"].append(_timed(run, engine()))
    return Result(name, *(median(times[each]) for each in ("numpy", "first", "later")), counted)


def _timed(run: Run, engine: Engine) -> float:
    with engine:
        begin = perf_counter()
        run()
        return perf_counter() - begin


def _since(now: Statistics, before: Statistics) -> Statistics:
    """What was counted since then; lines and bytes are those of now."""
    return Statistics(
        now.hits - before.hits,
        now.restored - before.restored,
        now.misses - before.misses,
        now.evictions - before.evictions,
        now.lines,
        now.capacity,
        now.bytes,
    )


# --- quimb ----------------------------------------------------------------------------------------


def _quimb() -> Any:
    return import_module("quimb.tensor")


def _in_quimb() -> Engine:
    found: Engine = _quimb().contract_backend("contract")
    return found


def _circuit(qubits: int, depth: int) -> Any:
    """Rotations and CZ in a brickwork, as a variational circuit has them."""
    rng = np.random.default_rng(1)
    circuit = _quimb().Circuit(qubits)
    for layer in range(depth):
        for qubit in range(qubits):
            circuit.apply_gate("U3", *rng.uniform(0, 3, 3), qubit)
        for qubit in range(layer % 2, qubits - 1, 2):
            circuit.apply_gate("CZ", qubit, qubit + 1)
    return circuit


def amplitude() -> tuple[Run, Callable[[], Engine]]:
    """The amplitude of one string of 14 qubits."""
    _quimb()
    return lambda: _circuit(14, 8).amplitude("01" * 7, optimize="greedy"), _in_quimb


def local_expectation() -> tuple[Run, Callable[[], Engine]]:
    """Expectations of a pair's operator in the light cones of its circuit."""
    _quimb()
    operator = np.diag([1.0, -1.0, -1.0, 1.0])

    def run() -> Any:
        circuit = _circuit(14, 6)
        return sum(
            circuit.local_expectation(operator, (at, at + 1), optimize="greedy") for at in range(4)
        )

    return run, _in_quimb


def ising() -> tuple[Run, Callable[[], Engine]]:
    """The partition function of a square lattice, by exact contraction."""
    quimb = _quimb()
    network = quimb.TN2D_classical_ising_partition_function(10, 10, beta=0.4)
    return lambda: network.contract(all, optimize="greedy"), _in_quimb


def boundary() -> tuple[Run, Callable[[], Engine]]:
    """The same by a boundary of matrix products."""
    quimb = _quimb()
    network = quimb.TN2D_classical_ising_partition_function(16, 16, beta=0.4)
    return lambda: network.contract_boundary(max_bond=8), _in_quimb


def dmrg() -> tuple[Run, Callable[[], Engine]]:
    """The ground state's energy of a Heisenberg chain."""
    quimb = _quimb()

    def run() -> Any:
        solver = quimb.DMRG2(quimb.MPO_ham_heis(12), bond_dims=[8, 16], cutoffs=1e-9)
        solver.solve(max_sweeps=2, verbosity=0, tol=1e-12)
        return float(np.real(solver.energy))

    return run, _in_quimb


def tebd() -> tuple[Run, Callable[[], Engine]]:
    """A quench of a chain, step by step."""
    quimb = _quimb()

    def run() -> Any:
        state = quimb.MPS_neel_state(12)
        evolution = quimb.TEBD(state, quimb.ham_1d_heis(12), dt=0.05, progbar=False)
        evolution.split_opts["cutoff"] = 1e-8
        evolution.update_to(0.5, tol=None)
        return abs(evolution.pt.H @ evolution.pt)

    return run, _in_quimb


# --- others ---------------------------------------------------------------------------------------


def uccsd() -> tuple[Run, Callable[[], Engine]]:
    """PySCF's unrestricted coupled clusters of a small molecule; it has an einsum of its own."""
    pyscf, gto, scf, cc = map(import_module, ("pyscf", "pyscf.gto", "pyscf.scf", "pyscf.cc"))
    pyscf.lib.num_threads(1)
    molecule = gto.M(atom="N 0 0 0; O 0 0 1.15", basis="sto-3g", spin=1, verbose=0)
    field = scf.UHF(molecule).run()
    own = pyscf.lib.einsum

    def ours(text: str, *operands: Any, **options: Any) -> Any:
        return contract.einsum(text, *map(np.asarray, operands), **options)

    holders = [each for each in sys.modules.values() if getattr(each, "einsum", None) is own]
    return lambda: cc.UCCSD(field).run().e_corr, lambda: replaced(holders, {"einsum": ours})


def sliced() -> tuple[Run, Callable[[], Engine]]:
    """A network that cotengra cuts into slices."""
    cotengra = import_module("cotengra")
    inputs, output, _, sizes = cotengra.utils.rand_equation(24, 3, d_min=3, d_max=4, seed=2)
    rng = np.random.default_rng(3)
    arrays = [rng.random([sizes[label] for label in term]) for term in inputs]
    tree = cotengra.array_contract_tree(inputs, output, sizes, optimize="greedy")
    tree.slice_(target_slices=24)
    engine: list[Any] = [None]

    @contextmanager
    def ours() -> Iterator[None]:
        engine[0] = (contract.einsum, contract.tensordot)
        try:
            yield
        finally:
            engine[0] = None

    return lambda: tree.contract(arrays, implementation=engine[0]), ours


def decomposition(name: str) -> Callable[[], tuple[Run, Callable[[], Engine]]]:
    """A decomposition of tensorly with its algebra by einsum."""

    def make() -> tuple[Run, Callable[[], Engine]]:
        tensorly = import_module("tensorly")
        found = getattr(import_module("tensorly.decomposition"), name)
        tensorly.tenalg.set_backend("einsum")
        x = np.random.default_rng(4).random((12, 13, 14, 5))
        rank = 4 if name == "parafac" else [4, 4, 4, 3]
        backend = tensorly.backend.BackendManager.current_backend()
        ours = {"einsum": contract.einsum, "tensordot": contract.tensordot}

        def run() -> Any:
            result = found(x, rank, n_iter_max=20, tol=0, init="svd")
            whole = "cp_to_tensor" if name == "parafac" else "tucker_to_tensor"
            return getattr(tensorly, whole)(result)

        return run, lambda: replaced([backend], ours)

    return make


@contextmanager
def replaced(holders: Sequence[Any], ours: Mapping[str, Any]) -> Iterator[None]:
    """Attributes of modules or classes, ours as long as this lasts."""
    before = [(each, name, getattr(each, name)) for each in holders for name in ours]
    try:
        for each, name, _ in before:
            setattr(each, name, ours[name])
        yield
    finally:
        for each, name, value in before:
            setattr(each, name, value)


PROGRAMS = (
    Program("amplitude", amplitude),
    Program("expectation", local_expectation),
    Program("ising", ising),
    Program("boundary", boundary),
    Program("dmrg", dmrg),
    Program("tebd", tebd),
    Program("uccsd", uccsd),
    Program("sliced", sliced),
    Program("parafac", decomposition("parafac")),
    Program("tucker", decomposition("tucker")),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench programs", description=__doc__)
    parser.add_argument("--cases", default="", help=", ".join(map(_name, PROGRAMS)))
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    return parser
