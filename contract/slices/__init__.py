"""Contractions that do not fit: modes cut into chunks, slices run here or by many workers.

In: an operation and a limit. Out: one plan for all slices. Imports session.
"""
