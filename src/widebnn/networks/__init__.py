"""Networks: parameters that are N(0, 1) a priori, and a feature map in front of a linear readout."""

from widebnn.networks.dense import DenseNetwork, Layer, dense
from widebnn.networks.network import FeatureMap, Network, Weights, apply, feature_map

__all__ = ["DenseNetwork", "FeatureMap", "Layer", "Network", "Weights", "apply", "dense", "feature_map"]
