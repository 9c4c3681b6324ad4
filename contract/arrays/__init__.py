"""The seam to array libraries: NumPy, CuPy, torch and JAX, each behind one protocol.

In: whatever a caller calls an array. Out: layouts (shape, strides, type) and plain arrays. Imports
descriptors; the libraries themselves are imported by the caller, or when their arrays appear.
"""
