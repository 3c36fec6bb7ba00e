"""From Python: train, look at runs, and predict in a script or a notebook. `lockstep` offers these names."""
