"""What hardware can do, as data and arithmetic: processors, GPUs, their kernels' tables.

In: a capability or a processor's constants. Out: predicted seconds, legal kernel configurations.
Imports descriptors. Nothing here asks the hardware.
"""
