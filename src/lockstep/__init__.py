"""Lockstep: N workers compute what one worker would. Imports nothing, so that every command starts at once."""

__version__ = "0.1.0"
