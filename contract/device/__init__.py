"""Plans on a GPU through CuPy: launches built once, cuBLAS, CUDA graphs, modules on disk.

In: a plan. Out: results in CuPy arrays. Imports execution; host and device do not know each other.
"""
