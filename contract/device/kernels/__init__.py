"""Steps -> launches of our kernels; the CUDA sources (.cuh) lie beside what launches them."""
