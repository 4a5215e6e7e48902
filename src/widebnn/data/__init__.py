"""Data sets ready for a network: standardised inputs, centred targets."""

from widebnn.data.dataset import Dataset
from widebnn.data.downloads import download
from widebnn.data.loaders import load_dataset

__all__ = ["Dataset", "download", "load_dataset"]
