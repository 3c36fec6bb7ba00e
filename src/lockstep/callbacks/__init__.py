"""Callbacks and loggers: status, curves, pictures, stopping, averaged weights. Their names here are public."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
