"""Copy files from a bucket or a shared disk to this machine, once for all its processes."""
