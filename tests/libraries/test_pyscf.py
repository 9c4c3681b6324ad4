"""Coupled cluster by PySCF with this engine in place of its einsum."""

from typing import Any

import numpy as np
import pytest

import contract as ct

pyscf = pytest.importorskip("pyscf")
WATER = "O 0 0 0.117; H 0 0.757 -0.470; H 0 -0.757 -0.470"
TOLERANCE = 1e-9  # hartree


def test_the_energy_of_water(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyscf import cc, gto, lib, scf

    molecule = gto.M(atom=WATER, basis="cc-pvdz", verbose=0)
    field = scf.RHF(molecule).run(conv_tol=1e-12)
    calls = []

    def einsum(text: str, *operands: Any, **options: Any) -> Any:
        calls.append(text)
        return ct.einsum(text, *map(np.asarray, operands), **options)

    def energy() -> float:
        cluster = cc.rccsd.RCCSD(field)
        cluster.conv_tol, cluster.conv_tol_normt = 1e-10, 1e-8
        cluster.kernel()
        assert cluster.converged
        return float(cluster.e_corr)

    wanted = energy()
    assert not calls
    monkeypatch.setattr(lib, "einsum", einsum)
    assert abs(energy() - wanted) < TOLERANCE
    assert len(calls) > 100
