"""The uses of a trained network: predictions, evaluations, reports and exported files."""
