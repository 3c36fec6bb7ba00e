"""Jobs: runs and other commands in SLURM, or in the background of this machine.

Their folders have the records.
"""
