"""The shard of each rank, and the sums between ranks, for any data and network. These names are public and stay."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
