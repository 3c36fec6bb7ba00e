"""Runs the trials of a sweep: their order, their devices, and their jobs."""
