"""Implements the commands `python train.py` and `lockstep`."""
