"""sample(): reproducible whatever the chunking, honest about failures, and silent off a terminal."""

import os
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widebnn
from killing import loop
from problems import small_data, small_target
from widebnn.sampling import program, progress

GAUSSIAN = widebnn.Target(
    log_likelihood=lambda u: -0.5 * jnp.sum((u["a"] - 1.0) ** 2) - jnp.sum(u["b"] ** 2),
    sample_reference=lambda key: {
        "a": jax.random.normal(key, (3,), jnp.float32),
        "b": jax.random.normal(jax.random.fold_in(key, 7), (2, 2), jnp.float32),
    },
)


def run(**options):
    return widebnn.sample(GAUSSIAN, "pcn", **({"step_size": 0.4, "steps": 24, "seed": 3} | options))


def test_step_t_uses_the_folded_key():
    """The chain by hand, outside the driver."""
    algorithm = widebnn.samplers.pcn(GAUSSIAN.log_likelihood, 0.4)
    init_key, step_key = jax.random.split(jax.random.fold_in(jax.random.key(3), 1))
    state = algorithm.init(GAUSSIAN.sample_reference(init_key))
    positions = []
    step = jax.jit(algorithm.step)
    for t in range(24):
        key, _ = jax.random.split(jax.random.fold_in(step_key, t))
        state, _ = step(key, state)
        positions.append(state.position["a"])
    np.testing.assert_allclose(run(chains=2).draws["a"][1], np.stack(positions), rtol=1e-6)


def test_keys_of_collect_are_not_those_of_steps():
    """What collect draws is independent of the chain's noise: no key is used twice, by steps, draws or chains."""
    target = widebnn.Target(lambda u: jnp.sum(u), lambda key: jax.random.normal(key, (2,), jnp.float64))
    base = widebnn.samplers.pcn(target.log_likelihood, 0.4)

    def step(key, state):
        new, info = base.step(key, state)
        return new._replace(position=jax.random.key_data(key).astype(jnp.float64)), info

    def collect(key, position):
        return {"step": position, "collect": jax.random.key_data(key).astype(jnp.float64)}

    draws = widebnn.sample(target, base._replace(step=step), steps=30, chains=2, collect=collect).draws
    keys = np.concatenate([draws["step"], draws["collect"]]).reshape(-1, 2)
    assert len(np.unique(keys, axis=0)) == len(keys) == 120


def test_chain_does_not_depend_on_chunks_chains_thinning_or_progress(monkeypatch):
    reference = run().draws["a"][0]
    three = run(chains=3).draws["a"]
    np.testing.assert_array_equal(three[0], reference)
    assert not np.array_equal(three[1], reference) and not np.array_equal(run(seed=4).draws["a"][0], reference)
    np.testing.assert_array_equal(run(thin=4).draws["a"][0], reference[3::4])
    np.testing.assert_array_equal(run(burn_in=10, steps=14).draws["a"][0], reference[10:])
    np.testing.assert_array_equal(run(progress=True).draws["a"][0], reference)
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(program, "BUFFER_BYTES", 100)
    np.testing.assert_array_equal(run().draws["a"][0], reference)


def test_initial_positions():
    start = {"a": np.full((2, 3), 0.25), "b": np.zeros((2, 2, 2))}
    result = run(chains=2, initial=start, steps=1, step_size=1e-6)
    np.testing.assert_allclose(result.draws["a"][:, 0], 0.25, atol=1e-4)
    with pytest.raises(widebnn.WidebnnError, match=r"one position per chain.*\(3, 3\)"):
        run(chains=3, initial=start)


def test_built_samplers_and_collect():
    algorithm = widebnn.samplers.hmc(GAUSSIAN.log_likelihood, 0.3, num_steps=3)
    result = widebnn.sample(
        GAUSSIAN, algorithm, steps=5, collect=lambda key, u: {"sum": u["a"].sum(), "noise": jax.random.normal(key)}
    )
    assert set(result.draws) == {"sum", "noise"}
    assert len(np.unique(result.draws["noise"])) == 5
    assert result.gradients_per_step == 3


def test_progress_is_a_bar_on_terminals_and_lines_elsewhere(monkeypatch, capfd):
    for show in (None, False):
        run(burn_in=5, progress=show)
        assert capfd.readouterr() == ("", "")
    run(burn_in=5, progress=True)
    shown = capfd.readouterr().err
    assert "acceptance" in shown and "ETA" in shown
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    run(burn_in=5, progress=None)
    lines = capfd.readouterr().err.splitlines()
    pattern = r"(burn-in|sampling): .*steps.*, acceptance [\d.]+, ETA \d+ s"
    assert lines and all(re.fullmatch(pattern, line) for line in lines)
    run(burn_in=5, progress=False)
    assert capfd.readouterr().err == ""


def test_interrupt_returns_what_is_there(monkeypatch):
    """A real SIGINT, sent once the third chunk of draws is in."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.01)
    chunks = []

    class Interrupting(loop.Progress):
        def update(self, phase, steps, acceptance):
            chunks.append(phase)
            if chunks.count("sampling") == 3:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "Progress", Interrupting)
    with pytest.warns(UserWarning, match="interrupted: [0-9]+ of 10000000 draws"):
        result = run(steps=10**9, thin=100)
    monkeypatch.undo()
    assert result.interrupted
    assert 0 < result.steps < 10**9
    assert result.draws["a"].shape[1] == result.steps // 100
    complete = run(steps=200, thin=100)
    np.testing.assert_array_equal(result.draws["a"][:, :2], complete.draws["a"])


def test_time_that_is_over_leaves_ten_draws_and_none_in_the_burn_in(tmp_path):
    complete = run(steps=60, thin=2, burn_in=7)
    early = run(steps=60, thin=2, burn_in=7, max_seconds=0, store=tmp_path / "run")
    assert (early.burn_in, early.steps, early.interrupted) == (0, 0, False)
    short = run(steps=60, thin=2, max_seconds=0)
    assert (short.steps, short.interrupted) == (20, False)
    np.testing.assert_array_equal(short.draws["a"], run(steps=60, thin=2).draws["a"][:, :10])
    whole = run(steps=60, thin=2, burn_in=7, max_seconds=1e6, store=tmp_path / "run")
    np.testing.assert_array_equal(whole.draws["a"], complete.draws["a"])


def test_bad_proposals_are_counted_and_reported():
    target = widebnn.Target(
        lambda u: jnp.where(u > 0.5, jnp.nan, 0.0).sum(), lambda key: -jnp.abs(jax.random.normal(key, (1,)))
    )
    with pytest.warns(UserWarning, match="proposals had a log-likelihood or a gradient that is not a finite number"):
        result = widebnn.sample(target, "pcn", step_size=0.5, steps=200)
    assert result.stats["nonfinite"].sum() > 0
    assert np.isfinite(result.draws["u"]).all()


def test_a_hopeless_start_is_named():
    target = widebnn.Target(lambda u: jnp.nan * u.sum(), lambda key: jax.random.normal(key, (2,)))
    with pytest.raises(widebnn.WidebnnError, match=r"log-likelihood \(nan\) is not finite at the start of chain 0"):
        widebnn.sample(target, "pcn", step_size=0.1, steps=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"max_seconds": -1}, "max_seconds must be at least 0, got -1"),
        ({"thin": 25}, "thin=25 keeps nothing of 24 steps"),
        ({"burn_in": -1}, "burn_in must be at least 0"),
        ({"chains": 0}, "chains must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"step_size": 1.5}, "step_size must be greater than 0 and at most 1"),
        ({"step_size": 0}, "step_size must be greater than 0"),
        ({"step_size": float("nan")}, "step_size must be greater than 0"),
        ({"leapfrogs": 3}, "sampler 'pcn'.*leapfrogs"),
        ({"collect": lambda key, u: u["a"]}, "collect must return a dictionary"),
        ({"collect": lambda key, u: {"big": jnp.zeros((10**4, 10**4))}}, "GB: pass a collect function"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(widebnn.WidebnnError, match=message):
        run(**options)


def test_bad_samplers():
    with pytest.raises(widebnn.WidebnnError, match="Did you mean 'pcnl'"):
        widebnn.sample(GAUSSIAN, "pcnll", steps=3, step_size=0.1)
    with pytest.raises(widebnn.WidebnnError, match="step_size"):
        widebnn.sample(GAUSSIAN, "pcn", steps=3)
    with pytest.raises(widebnn.WidebnnError, match="need the sampler's name"):
        widebnn.sample(GAUSSIAN, widebnn.samplers.pcn(GAUSSIAN.log_likelihood, 0.1), steps=3, step_size=0.1)
    with pytest.raises(widebnn.WidebnnError, match="friction must be greater than 0"):
        widebnn.sample(GAUSSIAN, "underdamped", steps=3, step_size=0.1, friction=0)


def test_datatree_has_the_groups_arviz_users_expect():
    target = small_target("marginal", dtype="float32")
    x_test = small_data(seed=5)[0]
    result = widebnn.sample(
        target, "pcn", step_size=0.3, steps=6, chains=2, collect=widebnn.track(target, x_test, projections=4)
    )
    tree = result.to_datatree()
    groups = {"posterior", "sample_stats", "posterior_predictive", "predictions", "observed_data"}
    assert set(tree.children) == groups
    assert {"acceptance_rate", "lp"} <= set(tree["sample_stats"].data_vars)
    assert tree["posterior"]["weights"].dims == ("chain", "draw", "projection")
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "row", "output")
    assert tree["predictions"]["f_test"].dims == ("chain", "draw", "test_row", "output")
    np.testing.assert_array_equal(tree["observed_data"]["y"], target.y)
    np.testing.assert_array_equal(tree["sample_stats"]["lp"], result.stats["lp"])


@pytest.mark.ambient
def test_global_configuration_and_blas_threads_are_left_alone():
    from threadpoolctl import threadpool_info

    before = [(library["filepath"], library["num_threads"]) for library in threadpool_info()]
    result = run()
    assert result.draws["a"].dtype == np.float32
    assert result.stats["lp"].dtype == np.float64
    assert not jax.config.jax_enable_x64
    after = {library["filepath"]: library["num_threads"] for library in threadpool_info()}
    assert all(after[path] == threads for path, threads in before)


@pytest.mark.ambient
def test_lapack_runs_on_one_thread_from_the_first_factorisation():
    """In a fresh process, where nothing has loaded LAPACK yet."""
    program = """
import jax, jax.numpy as jnp, widebnn
from threadpoolctl import threadpool_info
from widebnn.precision import one_blas_thread
with one_blas_thread():
    jnp.linalg.cholesky(jnp.eye(3)).block_until_ready()
    inside = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
assert inside == {1}, inside
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_program_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("widebnn.sampling.program.physical_memory", lambda: 1000)
    with pytest.raises(widebnn.WidebnnError, match="GB of this machine: use fewer training rows"):
        widebnn.sample(small_target("function"), "pcn", step_size=0.1, steps=2)
    monkeypatch.setattr("widebnn.sampling.program.physical_memory", lambda: None)
    assert widebnn.sample(small_target("function"), "pcn", step_size=0.1, steps=2).steps == 2
