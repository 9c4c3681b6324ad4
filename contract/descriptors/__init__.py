"""What is asked, without arrays: notation, tensors, operations, operators, compute types.

In: what a caller writes. Out: frozen descriptors whose modes are numbers; strings end here. Imports
errors and support.
"""
