"""Implements the commands status, runs and compare, which read run folders and import no torch."""
