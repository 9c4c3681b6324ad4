"""The functions that Numba compiles: copies, tiles, rows, sums, and the team of threads."""
