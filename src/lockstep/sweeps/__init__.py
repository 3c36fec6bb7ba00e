"""The trials of a sweep: their settings, their devices, and their results."""
