"""What is kept on disk: decisions of plans, and a machine's constants, as JSON.

In and out: frozen values. Imports descriptors, machines, plan and support.
"""
