"""Provide callbacks and loggers for status, curves, figures, stopping and averaged weights.

The names exported here are public.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
