"""Implements the tab Training of TensorBoard, and `lockstep board`, which opens it."""
