"""A product's candidates on a processor: BLAS, panels, tiles, loops, with their seconds."""
