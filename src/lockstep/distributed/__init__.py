"""Shard each batch over the ranks, and sum over ranks, for any data and network.

The names exported here are public and remain stable.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
