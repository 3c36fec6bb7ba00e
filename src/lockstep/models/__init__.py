"""Define networks and their training, independent of data.

The names exported here are public, and stay the same.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
