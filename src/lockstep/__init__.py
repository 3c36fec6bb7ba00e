"""Lockstep: N workers compute what one worker would.

These names are public: projects use them. They wait with their imports until somebody asks for one of them, so that
every command starts at once.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
