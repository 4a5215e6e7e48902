"""The driver: run chains, keep what the caller asks for, hand over to ArviZ."""

from widebnn.sampling.collect import track
from widebnn.sampling.driver import sample
from widebnn.sampling.placement import device_mesh
from widebnn.sampling.result import Result

__all__ = ["Result", "device_mesh", "sample", "track"]
