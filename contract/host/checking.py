"""What CONTRACT_CHECK looks at before a step runs: the arrays that it reads and writes."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from contract.arrays.protocol import Array
from contract.descriptors.operations import TensorDescriptor
from contract.errors import ExecutionError
from contract.host.resources.prepared import Memory, Run, Scalars
from contract.plan.steps import Plan, Step, step_slots

__all__ = ["checked_product", "checked_step"]

Product = Callable[[Sequence[Array]], Array]


def checked_step(plan: Plan, step: Step, run: Run) -> Run:
    """``run``, once the arrays that the step reads and writes lie as their slots say."""
    touched = tuple(step_slots(step))

    def checked(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        _check_arrays(plan, touched, slots)
        run(slots, scalars, memory)

    return checked


def checked_product(plan: Plan, product: Product) -> Product:
    """``product``, which makes a result from the inputs alone; both are looked at."""

    def checked(inputs: Sequence[Array]) -> Array:
        _check_arrays(plan, range(plan.inputs), inputs)
        found = product(inputs)
        _check_arrays(plan, [plan.output], [*inputs, found])
        return found

    return checked


def _check_arrays(plan: Plan, touched: Iterable[int], arrays: Sequence[Array]) -> None:
    for slot in touched:
        x, tensor = arrays[slot], plan.slots[slot].tensor
        absent = slot == plan.addend and x is arrays[plan.output]  # beta is 0: it is not read
        if not absent and not _lies_as(x, tensor):
            raise ExecutionError(
                f"Slot {slot} was planned as {tensor}: the array is {x.dtype} with shape "
                f"{x.shape} and strides {x.strides} bytes."
            )


def _lies_as(x: Array, tensor: TensorDescriptor) -> bool:
    size = x.itemsize
    return (
        x.dtype == np.dtype(tensor.dtype)
        and x.shape == tensor.extents
        and all(
            n == 1 or stride == step * size or x.size == 0
            for n, stride, step in zip(x.shape, x.strides, tensor.steps, strict=True)
        )
    )
