"""Starts, supervises and ends the processes of a run, and sends the notification of its end."""
