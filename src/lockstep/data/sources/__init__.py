"""Sources of images: downloaded or embedded data sets, and custom folders, lists and Datasets."""
