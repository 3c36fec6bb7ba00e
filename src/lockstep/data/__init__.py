"""From image sources to this rank's shard of every global batch, augmented.

These names are public: configurations and projects use them, and they stay where modules move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
