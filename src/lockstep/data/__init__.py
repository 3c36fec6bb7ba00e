"""Load images, shard every global batch over the ranks, and augment the shards.

The names exported here are public. Configurations and projects use them, and they stay the same
when modules move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
