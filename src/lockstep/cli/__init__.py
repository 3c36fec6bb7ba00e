"""The commands: `python train.py`, and `lockstep` with all that it does."""
