"""A tab for TensorBoard, and the command that shows it."""
