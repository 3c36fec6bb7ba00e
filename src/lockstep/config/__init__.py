"""Turns a command line into a checked configuration, composed by Hydra and typed by a schema.

Errors are reported with hints.
"""
