"""Plans on the processor: each step becomes a function, prepared once and called often.

In: a plan. Out: results in NumPy arrays. Imports execution; device and host do not know each other.
"""
