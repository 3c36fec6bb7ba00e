"""Represent images as tensors, as files, and as regions of a mapped cache."""
