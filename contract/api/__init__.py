"""The verbs that people call, and the drop-ins for NumPy, torch and JAX.

In: expressions, arrays, options. Out: arrays. Imports everything below.
"""
