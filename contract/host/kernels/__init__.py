"""The inner loops that steps call: a protocol, and a family of kernels made of NumPy calls."""
