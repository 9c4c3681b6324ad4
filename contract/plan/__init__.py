"""The plan: frozen steps over numbered slots, the workspace, and products as tables of loops.

In: descriptors. Out: steps as data, which every executor and every explanation reads. Imports
descriptors, machines and support.
"""
