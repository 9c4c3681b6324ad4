"""What the emulated driver puts into a tensor map: 128 bytes that kernels get as an argument."""

import numpy as np

TENSOR_MAP = np.dtype(
    [
        ("magic", "u8"),
        ("base", "u8"),
        ("extent", "u8", 5),
        ("stride", "u8", 4),
        ("box", "u4", 5),
        ("rank", "u1"),
        ("item", "u1"),
        ("swizzle", "u1"),
        ("rounds", "u1"),
        ("rest", "u1", 16),
    ]
)
