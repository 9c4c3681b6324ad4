"""What CONTRACT_CHECK looks at before anything runs: plans, and the arrays of every step."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from contract.descriptors import TensorDescriptor
from contract.errors import ExecutionError, InvalidValueError
from contract.plan import Plan, Step, step_slots
from contract.run.arrays import Array
from contract.run.steps import Memory, Run, Scalars
from contract.verification import verify

__all__ = ["check_plan", "checked_product", "checked_step"]

Product = Callable[[Sequence[Array]], Array]


def check_plan(plan: Plan) -> None:
    """ExecutionError where a step would leave its tensors, with the rule that it breaks."""
    try:
        verify(plan)
    except InvalidValueError as error:
        raise ExecutionError(f"The plan is not safe to run. {error}\n{plan}") from error


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
        if not _lies_as(x, tensor):
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
