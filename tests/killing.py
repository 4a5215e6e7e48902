"""Runs that end abruptly, without any clean-up of their own."""

import importlib

from widebnn.sampling import trace

loop = importlib.import_module("widebnn.sampling.sample")  # the package has the function of the same name
REAL = loop.Progress


class Killed(BaseException):
    """Nothing catches it."""


def save_often(monkeypatch):
    """Short chunks, with a checkpoint after each if ``checkpoint_seconds`` is zero."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 1e-4)
    monkeypatch.setattr(trace, "CHECKPOINT_SHARE", float("inf"))


def kill_after(monkeypatch, updates):
    """End runs from now on after so many updates of their progress; never if it is None."""
    left = [updates or 0]

    class Killing(REAL):
        def update(self, phase, steps, acceptance):
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    monkeypatch.setattr(loop, "Progress", Killing)
