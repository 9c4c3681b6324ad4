"""One pairwise product -> its candidates on a machine: the processor of the host, or a GPU."""

from typing import assert_never

from contract.heuristics import Cpu
from contract.host_options import host_options
from contract.kernels.architectures import Architecture
from contract.products import Option, ProductProblem, Search

__all__ = ["Machine", "options"]

Machine = Cpu | Architecture


def options(problem: ProductProblem, machine: Machine, search: Search = Search.ALL) -> list[Option]:
    """The ways worth trying to solve ``problem`` on the machine, unordered, at least one."""
    match machine:
        case Cpu():
            return host_options(problem, machine, search)
        case Architecture():
            from contract.device_options import device_options  # few programs have a GPU

            return device_options(problem, machine)
    assert_never(machine)
