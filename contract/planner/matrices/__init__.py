"""Products as matrix products, on any machine: GEMM where operands lie, TTGT on copies."""
