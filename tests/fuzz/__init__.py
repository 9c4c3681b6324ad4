"""A fuzzer: random calls of every verb against brute force, between guard pages.

``python -m tests.fuzz --cases 1000 --seed 1`` runs it; a case is its seed and its number.
"""
