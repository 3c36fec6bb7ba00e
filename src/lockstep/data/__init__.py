"""From image sources to this rank's share of every global batch, augmented."""
