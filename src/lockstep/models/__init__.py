"""Networks, and the loss, metrics and learning rates they are trained with: knows no data set.

These names are public: configurations and projects use them, and they stay where modules move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
