"""Steps -> launches: what each step of a plan becomes on a GPU."""

from typing import assert_never

from contract.kernels.blas import blas_calls
from contract.kernels.call import DeviceCall
from contract.kernels.configurations import Architecture
from contract.kernels.elementwise import elementwise_calls
from contract.kernels.gett import gett_calls
from contract.kernels.reduce import reduce_calls
from contract.plan import Elementwise, Gemm, Gett, Permute, Plan, Reduce, Step

__all__ = ["lower"]


def lower(plan: Plan, step: Step, architecture: Architecture) -> tuple[DeviceCall, ...]:
    """The launches that do one step, in order; none where there is nothing to write."""
    match step:
        case Gemm():
            found = blas_calls(plan, step)
            return gett_calls(plan, step, architecture) if found is None else found
        case Gett():
            return gett_calls(plan, step, architecture)
        case Permute() | Elementwise():
            return elementwise_calls(plan, step, architecture)
        case Reduce():
            return reduce_calls(plan, step, architecture)
    assert_never(step)
