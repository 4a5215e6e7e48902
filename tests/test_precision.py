"""Threads of BLAS while chains run."""

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from widebnn.precision import one_blas_thread

pytestmark = pytest.mark.ambient


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
