"""What every room may use: text, files written whole or not at all, memory, forks, threads.

In and out: plain values. Imports errors alone.
"""
