"""Coordinate systems: the same posterior over functions, written in different numbers that are N(0, I) a priori."""

from widebnn.coordinates.full import FullCoordinates
from widebnn.coordinates.function import FunctionCoordinates, FunctionPosition
from widebnn.coordinates.marginal import Coordinates
from widebnn.coordinates.reparametrised import ReparametrisedCoordinates
from widebnn.coordinates.weights import WeightCoordinates

__all__ = ["COORDINATES", "Coordinates", "FunctionPosition"]

COORDINATES: dict[str, type[Coordinates]] = {
    system.name: system
    for system in (WeightCoordinates, ReparametrisedCoordinates, Coordinates, FunctionCoordinates, FullCoordinates)
}
