"""The trials of one command: what they are, where each one runs, and what came of them."""
