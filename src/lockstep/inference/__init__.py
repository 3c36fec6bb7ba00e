"""What a trained network is used for: predictions, evaluations, reports and exported files."""
