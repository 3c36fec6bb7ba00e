"""From image sources to the shards of this rank of every global batch, augmented.

The names here are public: configurations and projects use them, and they stay if modules move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
