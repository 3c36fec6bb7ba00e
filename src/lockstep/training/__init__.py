"""The work of every rank of a training, from a saved configuration to its summary."""
