from .images.splits import ImageError as ImageError
from .images.splits import Images as Images
from .images.splits import Splits as Splits
from .images.splits import Statistics as Statistics
from .sampler import GlobalBatches as GlobalBatches
from .sources.builtin import (
    cifar10 as cifar10,
)
from .sources.builtin import (
    digits as digits,
)
from .sources.builtin import (
    fashion_mnist as fashion_mnist,
)
from .sources.builtin import (
    synthetic as synthetic,
)
from .sources.datasets import dataset as dataset
from .sources.folders import image_folder as image_folder
from .sources.lists import image_list as image_list
