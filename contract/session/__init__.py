"""A handle: its executor, its plan cache, plans on disk, tuning and calibration.

In: operations. Out: plans that are ready to run. Imports host and device, whose executors it makes.
"""
