"""The Python interface: train, inspect runs, and predict in a script or a notebook.

The package `lockstep` exports these names.
"""
