"""``dtype="mixed"``: float64 for what is accepted, float32 for where to go.

Every sampler here accepts or rejects by the log-likelihood and is exact whatever it follows instead of the gradient,
as long as that is a function of the position. So the gradient may be that of float32 features, at their cost, where
the log-likelihood itself needs float64: its error costs a little acceptance and nothing else. Where a sampler asks for
the gradient alone, as Hilbert-space HMC does on its way, the float64 part is not computed at all.

The data are rounded to float32 first: inputs that depend on one another must have the same rank in both precisions.
"""

from __future__ import annotations

import dataclasses

import jax

from widebnn.posteriors.target import NetworkTarget
from widebnn.precision import reverse_mode_only


def mixed_target(exact: NetworkTarget, single: NetworkTarget) -> NetworkTarget:
    """``exact`` with the gradient of ``single``, the same target in float32."""
    shapes = jax.eval_shape(single.sample_reference, jax.random.key(0))

    @jax.custom_vjp
    def log_likelihood(u):
        return exact.log_likelihood(u)

    def forward(u):
        return exact.log_likelihood(u), u

    def backward(u, cotangent):
        narrow = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), u, shapes)
        slope = jax.grad(single.log_likelihood)(narrow)
        return (jax.tree.map(lambda g, leaf: (cotangent * g).astype(leaf.dtype), slope, u),)

    log_likelihood.defvjp(forward, backward)
    return dataclasses.replace(
        exact, log_likelihood=reverse_mode_only(log_likelihood), dtype="mixed", in_double=lambda: exact
    )
