"""The exact posterior of a finite network beside its infinite-width limit, with R-hat below.

    python examples/posterior_and_limit.py docs/images

The same prior and the same 24 observations on both sides. On the left the posterior of 64 hidden units, sampled in
function space; on the right the Gaussian process that it tends to as the width grows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import arviz_stats
import matplotlib
import matplotlib.pyplot as plt
import numpy as np

import widebnn
from widebnn.limits import gp_posterior

NOISE = 0.1
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"


def data() -> tuple[np.ndarray, np.ndarray]:
    """Observations of a function, with a gap in the middle."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-2.6, -0.7, 14), rng.uniform(0.9, 2.4, 10)])[:, None]
    return x, np.sin(2.2 * x) * np.exp(0.25 * x) + NOISE * rng.normal(size=x.shape)


def draw_side(axes, x_new, functions, centre, spread, colour, title):
    """Data are drawn by the caller; here band, mean and single functions."""
    band = axes.fill_between(x_new, centre - 1.645 * spread, centre + 1.645 * spread, color=colour, alpha=0.2, lw=0)
    lines = axes.plot(x_new, functions.T, color=colour, alpha=0.35, lw=0.7)
    (mean,) = axes.plot(x_new, centre, color=colour, lw=2)
    axes.set_title(title, fontsize=11, loc="left")
    return band, lines[0], mean


def main(folder: str | Path = ".", width: int = 64, steps: int = 1500, chains: int = 4) -> Path:
    """Write posterior_and_limit.png."""
    matplotlib.use("agg")
    x, y = data()
    x_new = np.linspace(-4, 4, 161)
    network = widebnn.dense(1, [width], "erf", weight_std=2.5, bias_std=1.5)
    target = widebnn.posterior(network, x, y, noise=NOISE, dtype="float64", carry=x_new[:, None])
    result = widebnn.sample(target, steps=steps, burn_in=steps // 3, chains=chains, collect=widebnn.track(target))
    f = np.asarray(result.draws["f_test"])[..., 0]
    rhat = np.array([float(arviz_stats.rhat(f[:, :, i])) for i in range(f.shape[2])])
    limit = gp_posterior(network, x, y, NOISE, x_new[:, None])
    root = np.linalg.cholesky(limit.covariance + 1e-8 * np.eye(len(x_new)))
    smooth = limit.mean[:, 0] + np.random.default_rng(0).normal(size=(12, len(x_new))) @ root.T

    figure, ((left, right), (below, words)) = plt.subplots(
        2, 2, figsize=(10, 4.6), height_ratios=(4, 1), sharex="col", layout="constrained"
    )
    flat = f.reshape(-1, len(x_new))
    some = flat[:: len(flat) // 12][:12]
    handles = draw_side(
        left, x_new, some, flat.mean(0), flat.std(0), BLUE, f"{width} hidden units: exact posterior by MCMC"
    )
    draw_side(
        right, x_new, smooth, limit.mean[:, 0], np.sqrt(limit.variance), ORANGE, "Infinitely many: Gaussian process"
    )
    for axes in (left, right):
        (points,) = axes.plot(x[:, 0], y[:, 0], "o", color="black", ms=4, zorder=5)
        axes.set(ylim=(-3.2, 3.2), xlim=(-4, 4))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    left.set_ylabel("f(x)")
    names = ["90 % band", "posterior draws", "posterior mean", "observations"]
    left.legend([*handles, points], names, fontsize=8, loc="lower left", ncols=2, frameon=False)
    below.plot(x_new, rhat, color=BLUE)
    below.axhline(1.01, color=GREY, lw=1, ls=":")
    below.set(xlabel="x", ylabel="R-hat", ylim=(0.998, max(1.015, 1.02 * rhat.max() - 0.02)))
    below.text(3.95, 1.0106, "1.01", color=GREY, ha="right", va="bottom", fontsize=8)
    below.spines[["top", "right"]].set_visible(False)
    right.tick_params(labelbottom=True)
    right.set_xlabel("x")
    words.axis("off")
    words.text(
        0,
        0.2,
        f"Same prior, same data. {chains} chains of {steps} draws on the left,\n"
        f"acceptance {float(np.mean(result.acceptance_rate)):.2f}, largest R-hat {rhat.max():.3f}",
        color=GREY,
        fontsize=9,
        transform=words.transAxes,
    )
    path = Path(folder) / "posterior_and_limit.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(
        f"wrote {path}; largest R-hat {rhat.max():.4f}, standard deviation at x = 0: "
        f"{flat[:, 80].std():.3f}, in the limit {np.sqrt(limit.variance[80]):.3f}"
    )
    return path


if __name__ == "__main__":
    main(*sys.argv[1:2])
