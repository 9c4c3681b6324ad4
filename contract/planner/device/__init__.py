"""A product's candidates on a GPU, and the product as its kernels and cuBLAS see it."""
