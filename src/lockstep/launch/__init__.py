"""Starts, supervises and ends the processes of a run."""
