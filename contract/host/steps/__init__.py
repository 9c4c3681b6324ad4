"""A function for each kind of step: products by BLAS, panels, tiles and loops, passes, sums."""
