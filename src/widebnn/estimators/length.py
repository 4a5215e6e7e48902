"""How long to run chains for a wanted number of effective draws, without choosing among the draws that are kept.

Running until the draws themselves show enough effective draws is optional stopping: runs that happen to vary little,
or whose autocorrelation happens to be estimated too low, end earlier and are kept more often. What is kept then has too
small a variance, and intervals around its means cover too little. Here a trial run, which is discarded, says how long
the next run must be, and that one is kept as it comes, unless it falls far short. ``tests/estimators/test_length.py``
measures what is left of the effect on autoregressive chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

TRIAL = 0.5
"""A trial has at least this part of the wanted effective draws, or is repeated longer."""
MARGIN = 1.4
"""How much longer the run is than the trial says."""
ENOUGH = 0.75
"""The part of the wanted effective draws with which a run is kept."""
LEAST_TRIAL = 20
"""Steps of a trial, at least."""


def run_long_enough(
    run: Callable[[int, Any], Any],
    *,
    wanted: int,
    chains: int,
    most: int,
    has_time: Callable[[Any], bool] = lambda _: True,
) -> Any:
    """Run chains for ``wanted`` effective draws: a trial of a length that does not matter, then the run that is kept.

    The length of the kept run is decided before it begins, from the effective draws per step of the trial. Only where
    it has fewer than ``ENOUGH`` of the wanted ones, or its chains do not agree, is there another, at least twice as
    long. Where ``most`` steps are no longer than a trial, they are the only run.

    Args:
        run: ``run(steps, before)`` continues the chains of ``before`` (None: starts them). What it returns has ``ess``
            (effective draws of the statistic that has fewest), ``is_enough`` (the chains agree and have
            ``ENOUGH`` of the wanted draws) and ``is_whole`` (nothing ended it before its last step).
        wanted: effective draws of all chains together.
        chains: number of chains.
        most: most steps per chain of one run.
        has_time: whether a run at least as long as this one may still begin.

    Returns:
        The run to keep. A run that was cut short is kept only if it has more effective draws than the one before it.

    Examples:
        ``run_long_enough(lambda steps, before: chain(steps, before), wanted=400, chains=2, most=1000)``
    """
    steps = max(math.ceil(TRIAL * wanted / chains), LEAST_TRIAL)
    if steps >= most:
        return run(most, None)
    kept, is_trial = run(steps, None), True
    while has_time(kept):
        is_reliable = kept.ess >= TRIAL * wanted
        if not is_trial and (kept.is_enough or 2 * steps > most):
            break
        least = 1.0 if is_trial and is_reliable else 2.0
        aim = wanted if is_reliable else TRIAL * wanted
        steps = min(math.ceil(steps * max(least, MARGIN * aim / max(kept.ess, 1.0))), most)
        is_trial = not is_reliable and steps < most
        longer = run(steps, kept)
        if not longer.is_whole and longer.ess <= kept.ess:
            break
        kept = longer
    return kept
