"""Data sets ready for a network: standardised inputs, centred targets."""

from widebnn.data.dataset import Dataset
from widebnn.data.encoder import TableEncoder, with_target
from widebnn.data.images import download
from widebnn.data.loaders import load_dataset
from widebnn.data.tables import read_table

__all__ = ["Dataset", "TableEncoder", "download", "load_dataset", "read_table", "with_target"]
