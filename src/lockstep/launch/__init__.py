"""Processes: how a run is started, supervised and ended, and who is told of its end."""
