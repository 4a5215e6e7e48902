"""ArviZ plots straight from a result: traces and rank plots.

    python examples/arviz_figures.py figures

``result.to_datatree()`` is what ArviZ works with; ``f_test``, the function at new inputs, is in its group
``predictions``, and ``lp``, the log-likelihood, in ``sample_stats``. For chains that agree, the traces look alike and
the rank curves stay inside the grey band.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

import widebnn

if not hasattr(plt.style, "core"):
    # Matplotlib 3.11 has moved what ArviZ-plots, up to 1.1 at least, looks for here when it is imported.
    plt.style.core = plt.style
import arviz_plots


def run(width: int, steps: int, chains: int) -> widebnn.Result:
    """Draws of a function at three inputs, the last of them far from the data."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(20, 1))
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    network = widebnn.dense(1, [width], "erf", weight_std=2.0, bias_std=1.0)
    target = widebnn.posterior(network, x, y, noise=0.2)
    collect = widebnn.track(target, np.array([[-1.0], [0.0], [3.0]]))
    return widebnn.sample(target, steps=steps, burn_in=steps // 2, chains=chains, collect=collect)


def main(folder: str | Path = ".", width: int = 64, steps: int = 250, chains: int = 4) -> list[Path]:
    """Write figures of the traces and of the ranks."""
    matplotlib.use("agg")
    tree = run(width, steps, chains).to_datatree()
    figures = {
        "log-likelihood.png": (arviz_plots.plot_trace, {"group": "sample_stats", "var_names": ["lp"]}),
        "traces.png": (arviz_plots.plot_trace, {"group": "predictions", "var_names": ["f_test"]}),
        "ranks.png": (arviz_plots.plot_rank, {"group": "predictions", "var_names": ["f_test"]}),
    }
    paths = []
    with plt.style.context("arviz-variat"):
        for name, (plot, which) in figures.items():
            paths.append(Path(folder) / name)
            plot(tree, **which).savefig(paths[-1], dpi=100)
            plt.close("all")
            print(f"wrote {paths[-1]}")
    return paths


if __name__ == "__main__":
    main(*sys.argv[1:2])
