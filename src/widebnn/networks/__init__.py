"""Networks: parameters that are N(0, 1) a priori, and a feature map in front of a linear readout."""

from widebnn.networks.convolutional import (
    ConvLayer,
    ConvNetwork,
    ResidualBlock,
    ResidualNetwork,
    ResidualWeights,
    conv,
    resnet,
)
from widebnn.networks.dense import DenseNetwork, Layer, dense
from widebnn.networks.network import FeatureMap, Network, Weights, apply, feature_map

__all__ = [
    "ConvLayer",
    "ConvNetwork",
    "DenseNetwork",
    "FeatureMap",
    "Layer",
    "Network",
    "ResidualBlock",
    "ResidualNetwork",
    "ResidualWeights",
    "Weights",
    "apply",
    "conv",
    "dense",
    "feature_map",
    "resnet",
]
