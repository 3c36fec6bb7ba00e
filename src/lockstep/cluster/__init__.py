"""Jobs: runs that SLURM or the background of this machine trains. Their records are in the run folders."""
