"""Configurations in run folders: written, read, compared, trusted and changed for a resume."""
