"""Whole commands, as a user types them."""
