"""A plan in words: tables, pictures, scaling, advice, and what the log says of it.

In: a plan. Out: text; nothing here prints. Imports plan, planner, logging, and what the device
knows of its kernels.
"""
