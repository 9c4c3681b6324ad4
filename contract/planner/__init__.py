"""Operation -> plan: the order of products, the candidates of each, the choice by a model.

In: an operation, a preference, a machine. Out: a plan. ``validation`` makes terms of the tensors,
``network`` says what is done with them in order, ``emission`` makes steps of that. Pure arithmetic:
imports descriptors, machines, plan and support, never an executor.
"""
