"""Sources of images: downloaded or embedded data sets, and custom folders, lists and Datasets."""

# below data.root, of sources that download their files
FOLDERS = {
    "lockstep.data.fashion_mnist": "FashionMNIST/raw",
    "lockstep.data.cifar10": "cifar-10-batches-py",
}
