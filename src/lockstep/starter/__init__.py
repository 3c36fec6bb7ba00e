"""`lockstep new`: a project of one's own, beside an installed Lockstep."""
