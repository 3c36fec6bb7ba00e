"""Augment batches with draws that depend on the position of a sample in the global batch."""
