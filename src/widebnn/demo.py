"""The demonstration behind ``widebnn demo``: predictions with uncertainty, and acceptance against width."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from widebnn.data import Dataset
from widebnn.networks import dense
from widebnn.posteriors import posterior
from widebnn.samplers import pcn
from widebnn.sampling import sample

WIDTHS = (256, 512, 1024, 2048)
STEP_SIZE = 0.1


def pcn_acceptance_by_width(dataset: Dataset, seed: int = 0) -> Iterator[tuple[int, float]]:
    """Stationary acceptance rate of pCN for growing widths, one (width, rate) at a time.

    pCN itself would decorrelate slowly at small widths; the default sampler visits the same posterior quickly. At
    each of its draws the acceptance probability of fresh pCN proposals is averaged.
    """
    for width in WIDTHS:
        target = posterior(dense(dataset.x_train.shape[1], [width]), dataset.x_train, dataset.y_train)
        kernel = pcn(target.log_likelihood, STEP_SIZE)

        def rate(key, u, kernel=kernel):
            state = kernel.init(u)
            rates = [kernel.step(k, state)[1].acceptance_rate for k in jax.random.split(key, 8)]
            return {"rate": sum(rates) / len(rates)}

        result = sample(target, "auto", steps=25, burn_in=40, seed=seed, collect=rate, progress=False)
        yield width, float(result.draws["rate"].mean())
