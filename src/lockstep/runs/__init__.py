"""The folder of a run, which is all that the processes of Lockstep know of each other."""
