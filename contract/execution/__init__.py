"""A plan bound to arrays: what an executor is, recorded calls, functions that must be compiled.

In: a plan and layouts. Out: calls on arrays. Imports plan, planner, arrays and logging; the
executors themselves are in host and device.
"""
