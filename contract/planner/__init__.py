"""Operation -> plan: the order of products, the candidates of each, the choice by a model.

In: an operation, a preference, a machine. Out: a plan. Pure arithmetic: imports descriptors,
machines, plan and support, never an executor.
"""
