"""Composes a configuration from overrides with Hydra, and lists the values of a sweep."""
