"""One posterior over the devices of several processes.

    python examples/many_processes.py                                 one process, all its devices
    python examples/many_processes.py --processes 2 --process 0       two on this machine (and --process 1)
    python examples/many_processes.py --coordinator HOST:PORT --processes 2 --process 0     (and 1, elsewhere)
    srun python examples/many_processes.py --cluster                  as Slurm, or another scheduler, says

JAX's runtime asks nobody who they are. The first process listens on the address of the coordinator only, by default on
this machine's loopback; with --cluster alone it listens on all interfaces. Run it in a private network.

Every process makes the same call and gets the whole result; the first writes the store. Run it again after a stop, with
any number of processes, and it goes on.
"""

import argparse
import os
import sys

import jax
import numpy as np

import widebnn

LOOPBACK = "127.0.0.1:9737"


def main(steps: int = 150, width: int = 1024, store: str | None = None) -> np.ndarray:
    """The posterior mean of the function at five inputs."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(64, 1))
    y = np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)
    network = widebnn.dense(1, [width], weight_std=3.0, bias_std=3.0)
    target = widebnn.posterior(network, x, y, noise=0.1, dtype="float64")
    mesh = widebnn.device_mesh()
    x_test = np.linspace(-2, 2, 5)[:, None]
    result = widebnn.sample(
        target, steps=steps, burn_in=steps, chains=2, mesh=mesh, store=store, collect=widebnn.track(target, x_test)
    )
    mean = result.draws["mean_test"].mean(axis=(0, 1))[:, 0]
    if jax.process_index() == 0:
        print(f"{mesh.size} devices of {jax.process_count()} processes, {result.ms_per_step:.1f} ms per step")
        for here, value, truth in zip(x_test[:, 0], mean, np.sin(2 * x_test[:, 0]), strict=True):
            print(f"f({here:+.0f}) = {value:+.2f}, without noise it was {truth:+.2f}")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="HOST:PORT of the first process, where it listens and no more than there")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument("--cluster", action="store_true", help="ask the scheduler for what is not given")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--store", default="runs/many_processes")
    given = parser.parse_args()
    if given.cluster or given.coordinator or given.processes:
        address = given.coordinator or (None if given.cluster else LOOPBACK)
        jax.distributed.initialize(address, given.processes, given.process, coordinator_bind_address=address)
    try:
        main(given.steps, store=given.store)
    except widebnn.WidebnnError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)  # the runtime would wait for a lost process
