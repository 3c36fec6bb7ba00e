"""Who computes what of a global batch, and what the ranks tell each other: knows no data set and no model."""
