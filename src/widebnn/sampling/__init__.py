"""The driver: run chains, keep what the caller asks for, hand over to ArviZ."""

from widebnn.sampling.collect import track
from widebnn.sampling.placement import device_mesh
from widebnn.sampling.result import Result
from widebnn.sampling.sample import sample

__all__ = ["Result", "device_mesh", "sample", "track"]
