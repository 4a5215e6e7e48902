"""Small problems, and densities written down a second time without any code of the package."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

import widebnn

NOISE = 0.4
COORDINATES = ("weights", "reparametrised", "marginal", "function")
"""The systems that every network with a Gaussian likelihood has."""
NUMPY_ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "erf": scipy.special.erf,
    "tanh": np.tanh,
    "sin": np.sin,
}


def small_data(n=5, m=3, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, m)), rng.normal(size=(n, outputs))


def small_target(coordinates, n=5, m=3, outputs=2, widths=(4,), activation="gelu", seed=0, **options):
    x, y = small_data(n, m, outputs, seed)
    network = widebnn.dense(m, widths, activation)
    return widebnn.posterior(network, x, y, coordinates=coordinates, **{"noise": NOISE, "dtype": "float64"} | options)


def numpy_features(network, hidden, x):
    """Psi by plain NumPy, section 1 of the mathematics."""
    g = NUMPY_ACTIVATIONS[network.activation]
    h = np.asarray(x, np.float64)
    for layer in hidden:
        f = network.weight_std / np.sqrt(h.shape[1]) * h @ np.asarray(layer.w, np.float64)
        h = g(f + network.bias_std * np.asarray(layer.b, np.float64))
    psi = network.readout_weight_std / np.sqrt(h.shape[1]) * h
    return np.hstack([psi, np.full((len(h), 1), network.readout_bias_std)])


def function_features(network, x, u):
    """Psi from function-space coordinates: layer by layer f = root A with root root' = the layer's kernel."""
    x = np.asarray(x)
    augmented = np.hstack([network.weight_std / np.sqrt(x.shape[1]) * x, np.full((len(x), 1), network.bias_std)])
    upper = np.linalg.qr(augmented.T, mode="r")
    f = (upper.T * np.sign(np.diagonal(upper))) @ u[0]
    for a in u[1:]:
        g = network.activate(f)
        inputs = jnp.hstack([network.weight_std / np.sqrt(g.shape[1]) * g, jnp.full((len(g), 1), network.bias_std)])
        f = (inputs if inputs.shape[1] <= len(x) else jnp.linalg.cholesky(inputs @ inputs.T)) @ a
    g = network.activate(f)
    scaled = network.readout_weight_std / np.sqrt(g.shape[1]) * g
    return jnp.hstack([scaled, jnp.full((len(g), 1), network.readout_bias_std)])


def naive_log_likelihood(target):
    """l(u) as a textbook would write it, differentiable by plain autodiff, no custom gradient."""
    network, x, y, noise = target.network, target.x, target.y, target.likelihood.noise

    def weights(u):
        f = network.features(u.hidden, x) @ u.readout
        return jnp.sum(jax.scipy.stats.norm.logpdf(y, f, noise))

    def evidence(hidden):
        return evidence_of(network.features(hidden, x))

    def evidence_of(psi):
        k = psi @ psi.T + noise**2 * jnp.eye(len(x))
        quadratic = jnp.sum(y * jnp.linalg.solve(k, y))
        return -0.5 * (y.shape[1] * jnp.linalg.slogdet(2 * jnp.pi * k)[1] + quadratic)

    return {
        "weights": weights,
        "reparametrised": lambda u: evidence(u.hidden),
        "marginal": evidence,
        "function": lambda u: evidence_of(function_features(network, x, u.layers)),
    }[target.coordinates.name]


def autoregression(rho, *shape, seed=0):
    """Of order one along the first axis, with N(0, 1) values: sum of autocorrelations (1 + rho) / (1 - rho)."""
    x = np.random.default_rng(seed).normal(size=shape)
    for t in range(1, len(x)):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
    return x


def worst_z_of_normals(draws):
    """The largest z-score of means and covariances of draws that should be N(0, I), draws x dimension."""
    n, dimension = draws.shape
    covariance = (draws.T @ draws / n - np.eye(dimension)) * np.sqrt(n) / np.sqrt(1 + np.eye(dimension))
    return max(np.abs(draws.mean(0) * np.sqrt(n)).max(), np.abs(covariance).max())


def worst_z_of_pairs(pair_of, draws, batch_size=None):
    """The largest z-score of first and second moments of two draws, (a, b) = pair_of(key), that should have one law."""
    values = jax.jit(lambda keys: jax.lax.map(pair_of, keys, batch_size=batch_size))(
        jax.random.split(jax.random.key(0), draws)
    )
    a, b = (np.asarray(v).reshape(draws, -1) for v in values)
    a, b = (np.hstack([v, (v[:, :, None] * v[:, None, :]).reshape(draws, -1)]) for v in (a, b))
    return np.abs((a.mean(0) - b.mean(0)) / np.sqrt((a.var(0) + b.var(0)) / draws)).max()
