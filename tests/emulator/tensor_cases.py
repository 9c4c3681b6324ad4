"""What the tensor cores are tested with: every arithmetic, its types, its tiles, and layouts."""

from dataclasses import replace

from contract.descriptors.compute_types import ComputeType, item_size
from contract.machines import tensor_cores as known
from contract.machines.gpu_kernels import Arithmetic, TensorTile, tensor_tiles

from .products import Case

Kind = tuple[Arithmetic, dict[str, str], str, ComputeType | None]
HALF = dict.fromkeys("abdc", "float16")
BRAIN = dict.fromkeys("abdc", "bfloat16")
MIXED = {"a": "float64"}
# What multiplies, types of the tensors, the type of sums, and the compute type that allows it.
KINDS: list[Kind] = [
    (known.TF32, {}, "float32", ComputeType.TF32),
    (known.TF32X3, {}, "float32", ComputeType.TF32X3),
    (known.BF16, {}, "float32", ComputeType.BF16),
    (known.BF16X6, {}, "float32", ComputeType.BF16X9),
    (known.F16, HALF, "float32", None),
    (known.BF16, BRAIN, "float32", None),
    (known.INT8, {}, "int8", None),
    (known.UINT8, {"a": "uint8", "b": "uint8"}, "int32", None),
    (known.F64, {}, "float64", None),
    (known.F64_WIDE, {}, "float64", None),
    (known.TF32, {}, "complex64", ComputeType.TF32),
    (known.TF32X3, {}, "complex64", ComputeType.TF32X3),
    (known.BF16X6, {}, "complex64", ComputeType.BF16X9),
    (known.F64, {}, "complex128", None),
    (known.F64_WIDE, MIXED, "complex128", None),
]
# One arithmetic for each set of tiles: the other tables have the same ones but for their depth.
WITH_ALL_TILES = [KINDS[0], KINDS[9], KINDS[13]]


def tiles(kind: Kind) -> tuple[TensorTile, ...]:
    arithmetic, types, dtype, _ = kind
    return tensor_tiles(arithmetic, max(item_size(types.get(x, dtype)) for x in "ab"), dtype)


def laid_out(made: Case, direction: tuple[str, str]) -> Case:
    """A along m or k, B along n or k, D along m and C along n."""
    first = {"a": "mk" if direction[0] == "m" else "km", "b": direction[1], "d": "mn", "c": "nm"}
    first["b"] = "nk" if direction[1] == "n" else "kn"
    number = {mode.kind: at for at, mode in enumerate(made.modes)}
    return replace(
        made,
        layouts={
            name: replace(made.layouts[name], order=tuple(number[x] for x in text + "l"))
            for name, text in first.items()
        },
    )
