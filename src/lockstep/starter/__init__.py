"""`lockstep new`: creates a custom project next to an installed Lockstep."""
