"""A small share of what make reliability does about invariance, and whether it would notice a chain that changes."""

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import invariance
import widebnn
from invariance import Case, changes, compare
from page import Page
from widebnn.precision import one_blas_thread
from widebnn.sampling import driver

pytestmark = [pytest.mark.long, pytest.mark.ambient]
TOY = widebnn.Target(
    log_likelihood=lambda u: -jnp.sum((jnp.cumsum(u) - 1.0) ** 2),
    sample_reference=lambda key: jax.random.normal(key, (4,), jnp.float32),
)
CASE = Case("toy", lambda: TOY, "hmc", {"step_size": 0.3})


def some(*names):
    """Those of the changes."""
    every = changes(main_only=False)
    found = {theme: {name: group[name] for name in names if name in group} for theme, group in every.items()}
    return {theme: group for theme, group in found.items() if group}


def test_nothing_changes_a_chain():
    page = Page("invariance", share=0.0)
    invariance.report(page, compare(CASE, some("shortest", "5", "crash", "in a log")))
    assert page.holds and len(page.checks) == 6


def test_chains_that_depend_on_the_chunk_are_found(monkeypatch):
    advance = driver._Run._advance
    monkeypatch.setattr(driver._Run, "_advance", lambda run, state, key, t, n: advance(run, state, key, t + n, n))
    page = Page("invariance", share=0.0)
    invariance.report(page, compare(CASE, some("shortest", "2")))
    assert [check["holds"] for check in page.checks] == [False, False, True]


def test_a_change_that_changes_nothing_is_found():
    page = Page("invariance", share=0.0)
    invariance.report(page, [invariance.Comparison("chunk size", "shortest", "toy", [], effect=6)])
    assert [check["holds"] for check in page.checks] == [True, False]


def test_a_bit_is_a_difference():
    run = widebnn.sample(TOY, "pcn", step_size=0.3, steps=4, progress=False)
    other = copy.deepcopy(run)
    assert invariance.differences(run, other) == [] and invariance.digest(run) == invariance.digest(other)
    other.draws["u"][0, 2, 1] = np.nextafter(other.draws["u"][0, 2, 1], np.float32(9))
    assert invariance.differences(run, other) == ["u of chain 0"] and invariance.digest(run) != invariance.digest(other)


def test_processes_are_different_and_their_digests_compared(monkeypatch):
    monkeypatch.setattr(invariance, "fresh_process", lambda index, call: [f"{call.split('(')[0]}{index == 2}"] * 5)
    page = Page("invariance", share=0.0)
    invariance.check_repeats(page)
    assert [(check["figure"], check["holds"]) for check in page.checks] == [("2", False), ("1", False)]


def test_blas_stays_on_one_thread_until_the_last_has_left():
    """Whatever the order in which runs in several threads begin and end."""

    def blas_threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            leave.wait()

    with threadpool_limits(limits=2, user_api="blas"):
        assert blas_threads() == {2}
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        with one_blas_thread():
            leave.set()
            thread.join()
            assert blas_threads() == {1}
        assert blas_threads() == {2}
