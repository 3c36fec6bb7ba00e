"""Defines the keys of a configuration, with their types, ranges and scopes.

Finds similar names for unknown keys.
"""
