"""Classification with calibrated probabilities, the scikit-learn way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import helmert
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from widebnn.errors import WidebnnError, check_choice
from widebnn.estimators.base import NOISE_LOG_SD, WideBNN
from widebnn.estimators.ensemble import Function, argmax_probabilities, predictive
from widebnn.likelihoods import LogNormal, Softmax
from widebnn.limits import nngp_kernel
from widebnn.networks.dense import DenseNetwork
from widebnn.posteriors import posterior

LABEL_SHIFT = 0.1
"""Label regression: the targets are one-hot rows minus this, as in the paper."""
LEAST_NOISE = 0.05
"""Of label regression, unless given. Labels have no noise, and their evidence likes next to none. Predictions hardly
change below this, where the function at new inputs is more uncertain than that, and chains get ever slower."""
LOGIT_SCALE = LogNormal(3.0, log_sd=1.0)
"""Prior of the standard deviation of a logit."""
COMPONENTS = 500
"""Most components that the probabilities of label regression are averaged over."""


@dataclass(eq=False, repr=False)
class WideBNNClassifier(ClassifierMixin, WideBNN):
    """A wide Bayesian neural network for classification, sampled exactly.

    Inputs are standardised. Depth, activation and scales that are not given are chosen by the evidence of regression
    on the labels in the infinite-width limit.

    Args:
        likelihood: ``"regression"``: the paper's regression on one-hot labels minus 0.1, in which a class is predicted
            with the probability that its noisy output is the largest; its ``noise`` is at least 0.05 unless given.
            ``"softmax"``: the outputs are logits, whose scale is sampled with the chain, which takes longer.

    Attributes:
        classes_: The class labels, in the order of the columns of probabilities.

    Examples:
        >>> model = WideBNNClassifier(width=256, random_state=0).fit(x, labels)
        >>> probabilities = model.predict_proba(x_new)
    """

    likelihood: str = field(default="regression", kw_only=True)

    def fit(self, X: Any, y: Any) -> WideBNNClassifier:
        """Sample the posterior.

        Args:
            X: Inputs, n x m.
            y: Class labels, n.

        Returns:
            The fitted estimator.

        Raises:
            WidebnnError: A parameter is wrong, there is one class only, or memory or time do not suffice.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        is_softmax = check_choice("likelihood", self.likelihood, ("regression", "softmax")) == "softmax"
        if is_softmax and self._is_limit:
            raise WidebnnError("likelihood='softmax' needs a finite width; use 'regression', which is exact.")
        if self.noise == "inputs":
            raise WidebnnError("noise='inputs' is for regression; leave it out.")
        if is_softmax and self.noise is not None:
            raise WidebnnError(f"noise={self.noise!r} belongs to likelihood='regression'; leave it out.")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise WidebnnError(f"y must hold at least two classes; there is one class, {self.classes_[0]!r}.")
        one_hot = np.eye(len(self.classes_))[labels]
        self.y_mean_, self.y_scale_ = np.full(len(self.classes_), LABEL_SHIFT), np.ones(len(self.classes_))

        def build(x: Any, dtype: Any, chosen: Any) -> Any:
            network = chosen.network(x.shape[1], self._units)
            if is_softmax:
                network = _with_unit_outputs(network, x)
                # With fewer inputs than rows function values do not save a thing, and a kernel's root costs much.
                options: dict[str, Any] = {"coordinates": "weights"} if x.shape[1] < len(x) else {}
                options |= {"likelihood": Softmax(logit_scale=LOGIT_SCALE), "dtype": dtype}
                return posterior(network, x, one_hot, **options)
            noise = LogNormal(chosen.noise, NOISE_LOG_SD) if self.noise == "sample" else chosen.noise
            return posterior(network, x, one_hot - LABEL_SHIFT, noise=noise, dtype=dtype)

        # One-hot rows add up to one: evidence would count a direction without noise, contrasts have what they say.
        options = {} if is_softmax else {"least_noise": LEAST_NOISE}
        self._fit(X, lambda x, seed: (one_hot @ _contrasts(len(self.classes_)), options), build)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The posterior predictive probability of every class.

        Args:
            X: Inputs, rows x m.

        Returns:
            Probabilities, rows x classes.
        """
        return np.concatenate(self._evaluate(X, self._probabilities))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row.

        Args:
            X: Inputs, rows x m.

        Returns:
            Class labels.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def _probabilities(self, part: Function) -> np.ndarray:
        if self.ensemble_.noise.any():
            centres, std, _ = predictive(part)
            step = max(1, len(centres) // COMPONENTS)
            return argmax_probabilities(centres[::step], std[::step])
        return softmax(part.draws[..., 0], axis=2).mean(axis=0)


def _with_unit_outputs(network: DenseNetwork, x: np.ndarray) -> DenseNetwork:
    """The network with outputs of standard deviation 1 at the inputs, so that their factor is the logits' scale."""
    size = float(np.sqrt(np.mean(np.diagonal(nngp_kernel(network, x[:COMPONENTS])))))
    stds = {name: getattr(network, name) / size for name in ("readout_weight_std", "readout_bias_std")}
    return dataclasses.replace(network, **stds)


def _contrasts(classes: int) -> np.ndarray:
    """An orthonormal basis of the directions in which classes differ, classes x (classes - 1)."""
    return helmert(classes).T
