"""Provide images from built-in or downloaded data sets, and from custom folders and Datasets."""

# These are the folders below data.root of the sources that download their files.
FOLDERS = {
    "lockstep.data.fashion_mnist": "FashionMNIST/raw",
    "lockstep.data.cifar10": "cifar-10-batches-py",
}
