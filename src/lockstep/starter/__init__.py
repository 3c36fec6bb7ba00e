"""`lockstep new`: a custom project next to an installed Lockstep."""
