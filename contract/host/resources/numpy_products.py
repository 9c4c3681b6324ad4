"""NumPy's products as they are when the library is imported.

A program may put ours in their place, as in ``numpy.einsum = contract.einsum``. Steps that looked
NumPy's up by name would then call themselves.
"""

from numpy import einsum, matmul, tensordot

__all__ = ["einsum", "matmul", "tensordot"]
