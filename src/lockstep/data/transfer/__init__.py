"""From a bucket or a shared disk to this machine, once for all who ask."""
