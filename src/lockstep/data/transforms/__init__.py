"""Augmentation of batches, drawn by the position of a sample in the global batch."""
