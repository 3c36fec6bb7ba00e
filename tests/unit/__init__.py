"""One module each, in one process."""
