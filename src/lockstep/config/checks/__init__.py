"""Checks of a composed configuration: types, rules between keys, signatures, workers and data."""
