"""The command `lockstep verify`: a few steps by 1, 2 and 3 workers, compared number by number."""
