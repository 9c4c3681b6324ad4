"""Copies, passes, sums and products as tables of numbers, which compiled functions follow."""
