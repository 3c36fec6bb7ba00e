"""Lockstep: N workers compute what one worker would.

These names are public: projects use them. Each is imported on first use, so that every command
starts immediately.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
