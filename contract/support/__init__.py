"""What every room may use: text, files written whole or not at all, amounts of memory, forks.

In and out: plain values. Imports errors alone.
"""
