"""The machine and this process: signals, terminal, memory of cores and devices, packages.

The package does not depend on runs.
"""
