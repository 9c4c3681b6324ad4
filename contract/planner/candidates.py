"""One pairwise product -> its candidates on a machine: the processor of the host, or a GPU."""

from typing import assert_never

from contract.machines.cpu import Cpu
from contract.machines.gpu import Architecture
from contract.machines.machine import Machine
from contract.plan.products import Option, ProductProblem, Search
from contract.planner.host.candidates import host_options

__all__ = ["options"]


def options(problem: ProductProblem, machine: Machine, search: Search = Search.ALL) -> list[Option]:
    """The ways worth trying to solve ``problem`` on the machine, unordered, at least one."""
    match machine:
        case Cpu():
            return host_options(problem, machine, search)
        case Architecture():
            from contract.planner.device.candidates import device_options  # few programs have a GPU

            return device_options(problem, machine)
    assert_never(machine)
