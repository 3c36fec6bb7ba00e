"""The commands `python train.py` and `lockstep`."""
