"""Invariance: the same seed gives the same bits.

A small network posterior is sampled once as a base, then again with one thing changed at a time; chain i must stay the
same bit for bit: positions, log-likelihoods, predictions, statistics and last states. This is done for every sampler in
function coordinates, with fixed and with tuned step sizes (all changes), and for two samplers in the other coordinate
systems, for softmax, unknown noise, two hidden layers and float64 (the main changes). Changed are: how long a compiled
chunk takes and how many rows its buffer holds; whether and how often the run is stored; the progress display; thinning
(the common steps are compared, and counts and means with those of the steps between, means up to one rounding); the
number of chains; the number of steps (the shorter run is the beginning of the longer); interruption by Ctrl-C and by a
crash, after which the run goes on; other work before in the same process and beside in another thread; JAX's precision
and matmul settings of the caller. Compiled programs are kept between the runs of a case in a temporary folder: what is
the same program is compiled once, what differs (thinning, buffers, steps) is compiled anew.

Then one seed is run 100 times, five times in each of 20 fresh processes, three at a time on this machine's cores, with
different hash seeds, one or two BLAS threads, on one core or all; four of the processes compile for every run, the
others keep compiled programs. Each run has one SHA-256 of all that it returns. The same for a network of width 2 048,
and for fits of the estimator.

*Chance* plays no part: nothing may differ. *Not covered:* the mean acceptance rate of the burn-in, a sum over chunks,
which is the same up to rounding only; other machines, devices and versions of JAX, where rounding may differ. The
number of cores is one of these things: XLA divides products among its threads, so that all but the smallest networks
have other last bits on one core than on two. Digests are compared among processes with as many cores.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import widebnn
from page import ROOT, Page, main
from widebnn.compilation import compiled_once
from widebnn.samplers import SAMPLERS
from widebnn.sampling import driver, progress
from widebnn.sampling.collect import everything

STEP_SIZES = {"rwmh": 0.1, "pcn": 0.3, "pcnl": 0.4, "mala": 0.3, "underdamped": 0.3, "hmc": 0.2, "hilbert_hmc": 0.4}
SETTINGS = {"steps": 30, "burn_in": 12, "thin": 1, "chains": 2, "seed": 3, "progress": False}
MEANS = ("acceptance_rate", "accepted")
SUMS = (*MEANS, "nonfinite", "gradients")
"""Statistics over the steps since the draw before."""


class Case(NamedTuple):
    """A target and a sampler."""

    label: str
    target: Callable[[], widebnn.posteriors.NetworkTarget]
    sampler: str
    options: dict[str, Any]
    predicts: bool = False
    """Whether predictions are kept beside positions."""


def data(inputs: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Ten points."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, inputs))
    return x, np.sin(2 * x[:, :1]) + 0.1 * rng.normal(size=(10, 1))


def network_target(**options: Any) -> widebnn.posteriors.NetworkTarget:
    """A posterior of a network of width 16."""
    x, y = data(16 if options.get("space") == "full" else 3)
    if options.get("likelihood") == "softmax":
        y = (x[:, 0] > 0) + (x[:, 1] > 0)
    elif "noise" not in options:
        options["noise"] = 0.2
    return widebnn.posterior(widebnn.dense(x.shape[1], options.pop("widths", [16]), "erf"), x, y, **options)


def every_sampler() -> list[Case]:
    """In function coordinates, with a fixed step size, and with one that is tuned in both ways."""
    fixed = [(name, {"step_size": STEP_SIZES[name]} if name in STEP_SIZES else {}) for name in SAMPLERS]
    cases = [Case(name, network_target, name, options) for name, options in fixed]
    tuned = [Case(f"{name}, tuned", network_target, name, {}, predicts=True) for name in ("auto", "pcn")]
    return cases + tuned


def other_targets() -> list[Case]:
    """Two samplers in the other coordinate systems, and other posteriors."""
    places: list[dict[str, Any]] = [{"coordinates": name} for name in ("weights", "reparametrised", "marginal")]
    others: dict[str, dict[str, Any]] = {
        "softmax": {"likelihood": "softmax"},
        "unknown noise": {"noise": widebnn.LogNormal(0.2)},
        "two layers": {"widths": [16, 16]},
        "float64": {"dtype": "float64"},
    }
    cases = []
    for options in [*places, {"space": "full"}]:
        for sampler in ("pcn", "hilbert_hmc"):
            label = f"{sampler}, {next(iter(options.values()))}"
            build = functools.partial(network_target, **options)
            cases.append(Case(label, build, sampler, {"step_size": 0.2}, predicts=True))
    for name, options in others.items():
        cases.append(Case(name, functools.partial(network_target, **options), "auto", {}, predicts=True))
    return cases


def draw(case: Case, **options: Any) -> widebnn.Result:
    """A run of a case that keeps the whole position and, if asked for, predictions."""
    target = case.target()
    if case.predicts:
        predictions = widebnn.track(target, np.asarray(target.x[:2]) + 0.1, projections=5)
        options["collect"] = lambda key, u: everything(key, u) | predictions(key, u)
    return widebnn.sample(target, case.sampler, **{**SETTINGS, **case.options, **options})


def arrays_of(result: widebnn.Result, chain: int) -> dict[str, np.ndarray]:
    """Everything of one chain that has a row per draw."""
    return {name: array[chain] for name, array in {**result.draws, **result.stats}.items()}


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit, NaN and the sign of zero included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_mean(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal up to the rounding of a division."""
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= np.spacing(a)))


def thinned(array: np.ndarray, name: str, thin: int) -> np.ndarray:
    """What a run that keeps every ``thin``-th step has, from one that keeps all."""
    if name not in SUMS:
        return array[thin - 1 :: thin]
    total = np.zeros_like(array[thin - 1 :: thin])
    for first in range(thin):
        total = total + array[first::thin][: len(total)]
    return total / thin if name in MEANS else total


def differences(base: widebnn.Result, other: widebnn.Result) -> list[str]:
    """Names of the arrays of common chains and steps that are not the same."""
    found = []
    for chain in range(min(base.chains, other.chains)):
        ours, theirs = arrays_of(base, chain), arrays_of(other, chain)
        for name in ours:
            expected = thinned(ours[name], name, other.thin)
            length = min(len(expected), len(theirs[name]))
            equal = same_mean if name in MEANS and other.thin > 1 else same_bits
            if length == 0 or not equal(expected[:length], theirs[name][:length]):
                found.append(f"{name} of chain {chain}")
        if base.steps == other.steps:
            lasts = (jax.tree.leaves(jax.tree.map(lambda leaf: leaf[chain], run.last)) for run in (base, other))  # noqa: B023
            if not all(same_bits(a, b) for a, b in zip(*lasts, strict=True)):
                found.append(f"last of chain {chain}")
    return found


class Killed(BaseException):
    """Ends a run as a crash would."""


def watching(stop_after: int | None = None, interrupt: bool = False) -> tuple[type, list[int]]:
    """A progress class that notes the steps of every chunk, and ends the run after so many chunks."""
    chunks: list[int] = []

    class Watching(driver.Progress):
        def update(self, phase: str, steps: int, acceptance: float) -> None:
            super().update(phase, steps, acceptance)
            chunks.append(steps)
            if len(chunks) == stop_after:
                if not interrupt:
                    raise Killed
                os.kill(os.getpid(), signal.SIGINT)

    return Watching, chunks


@contextlib.contextmanager
def configured(**settings: Any) -> Iterator[None]:
    """JAX with other global settings."""
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


class Changed(NamedTuple):
    """Runs with one thing changed."""

    runs: list[widebnn.Result]
    effect: int = 1
    """How much was really changed: the number of chunks, of checkpoints, of characters shown."""


def cut(case: Case, base: widebnn.Result, **constants: Any) -> Changed:
    """Other sizes of chunks or buffers."""
    watch, chunks = watching()
    with mock.patch.multiple(driver, Progress=watch, **constants):
        return Changed([draw(case)], len(chunks))


def row_bytes(base: widebnn.Result) -> int:
    """Bytes of one row of the buffer."""
    return sum(array[0, 0].nbytes for array in {**base.draws, **base.stats}.values())


def stored(case: Case, base: widebnn.Result, seconds: float) -> Changed:
    """With checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.multiple(driver, CHECKPOINT_SHARE=float("inf"), CHUNK_SECONDS=1e-3):
            run = draw(case, store=folder, checkpoint_seconds=seconds)
        last = max(int(path.name.split("-")[1]) for path in Path(folder).glob("checkpoint-*"))
    return Changed([run], last + 1)


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def shown(case: Case, base: widebnn.Result, how: str) -> Changed:
    """With progress on a terminal, of its own or shared, or as lines in a log."""
    screen = io.StringIO() if how == "in a log" else Terminal()
    with (
        mock.patch.dict(os.environ, {"TERM": "xterm"}),
        mock.patch.object(progress, "LINE_SECONDS", 0.0),
        contextlib.redirect_stderr(screen),
    ):
        if how == "shared":
            with progress.display(True) as bars:
                run = draw(case, progress=bars)
        else:
            run = draw(case, progress=True if how == "asked for" else None)
    return Changed([run], len(screen.getvalue()))


def interrupted(case: Case, base: widebnn.Result, interrupt: bool) -> Changed:
    """Stopped in the burn-in and again later, then gone on with; the parts are compared too."""
    runs = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="interrupted")
        for stop_after in (2, 9, None):
            watch, _ = watching(stop_after, interrupt)
            constants = {"CHECKPOINT_SHARE": float("inf"), "CHUNK_SECONDS": 1e-4, "Progress": watch}
            with mock.patch.multiple(driver, **constants), contextlib.suppress(Killed):
                run = draw(case, store=folder, checkpoint_seconds=0)
                runs += [run] if run.steps else []
    assert runs[-1].steps == base.steps
    return Changed(runs)


def after_other_work(case: Case, base: widebnn.Result) -> Changed:
    """Random numbers, LAPACK, and another run before."""
    np.random.default_rng(1).normal(size=100)
    np.random.seed(5)
    np.linalg.eigh(np.random.normal(size=(300, 300)))
    jnp.linalg.cholesky(jnp.eye(200) * 2).block_until_ready()
    toy = widebnn.Target(lambda u: -jnp.sum(u**2), lambda key: jax.random.normal(key, (5,)))
    widebnn.sample(toy, "hmc", step_size=0.3, steps=20, seed=9, progress=False)
    return Changed([draw(case)])


def beside_other_work(case: Case, base: widebnn.Result) -> Changed:
    """In a thread, while the main thread does the same with another seed and LAPACK."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(draw, case)
        draw(case, seed=11)
        while not future.done():
            np.linalg.eigh(np.eye(200))
        return Changed([future.result()])


def under(case: Case, base: widebnn.Result, **settings: Any) -> Changed:
    """The target and the run made under other global settings of JAX."""
    with configured(**settings):
        return Changed([draw(case)])


def varied(case: Case, base: widebnn.Result, **options: Any) -> Changed:
    """Other arguments."""
    run = draw(case, **options)
    return Changed([run])


Change = Callable[[Case, widebnn.Result], Changed]


def changes(*, main_only: bool) -> dict[str, dict[str, Change]]:
    """What is changed, by theme."""

    def using(function: Callable[..., Changed], **options: Any) -> Change:
        return lambda case, base: function(case, base, **options)

    def rows(count: int) -> Change:
        return lambda case, base: cut(case, base, BUFFER_BYTES=count * row_bytes(base), CHUNK_SECONDS=1e3)

    found: dict[str, dict[str, Change]] = {
        "chunk size": {"shortest": using(cut, CHUNK_SECONDS=0.0), "3 rows": rows(3)},
        "checkpoint interval": {"every chunk": using(stored, seconds=0.0)},
        "thinning": {"5": using(varied, thin=5)},
        "number of chains": {"5": using(varied, chains=5), "1": using(varied, chains=1)},
        "interruption": {"crash": using(interrupted, interrupt=False)},
    }
    if main_only:
        return found
    found["chunk size"] |= {
        "short": using(cut, CHUNK_SECONDS=1e-3),
        "longest": using(cut, CHUNK_SECONDS=1e3),
        "1 row": rows(1),
    }
    found["checkpoint interval"] |= {"0.01 s": using(stored, seconds=0.01), "at the end": using(stored, seconds=1e9)}
    found["thinning"]["2"] = using(varied, thin=2)
    found["interruption"]["Ctrl-C"] = using(interrupted, interrupt=True)
    found["progress display"] = {how: using(shown, how=how) for how in ("asked for", "found", "shared", "in a log")}
    found["number of steps"] = {str(steps): using(varied, steps=steps) for steps in (20, 45)}
    found["other work"] = {"before": after_other_work, "in another thread": beside_other_work}
    found["JAX settings of the caller"] = {
        "x64": using(under, jax_enable_x64=True),
        "matmul precision": using(under, jax_default_matmul_precision="bfloat16"),
    }
    return found


EFFECTS = (("shortest", 42), ("3 rows", 12), ("every chunk", 5), ("progress display", 100))
"""What changes must have had at least, of 42 steps and 30 draws."""


class Comparison(NamedTuple):
    """One changed run, against its base."""

    theme: str
    change: str
    case: str
    found: list[str]
    effect: int


def compare(case: Case, themes: dict[str, dict[str, Change]]) -> list[Comparison]:
    """A case under all changes."""
    comparisons = []
    with compiled_once():
        base = draw(case)
        for theme, group in themes.items():
            for change, make in group.items():
                made = make(case, base)
                found = [name for run in made.runs for name in differences(base, run)]
                comparisons.append(Comparison(theme, change, case.label, found, made.effect))
    return comparisons


def compare_by_number(number: int) -> list[Comparison]:
    """The same in a process of its own."""
    samplers = every_sampler()
    is_main = number >= len(samplers)
    return compare([*samplers, *other_targets()][number], changes(main_only=is_main))


def check_changes(page: Page) -> None:
    """All cases, two at a time."""
    samplers, others = len(every_sampler()), len(other_targets())
    numbers = [*range(page.count(samplers)), *range(samplers, samplers + page.count(others))]
    comparisons: list[Comparison] = []
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        page.progress("changes", 0, len(numbers))
        for i, found in enumerate(pool.map(compare_by_number, numbers)):
            comparisons += found
            page.progress("changes", i + 1, len(numbers))
    report(page, comparisons)


def report(page: Page, comparisons: list[Comparison]) -> None:
    """A line per theme."""
    for theme in dict.fromkeys(comparison.theme for comparison in comparisons):
        ours = [comparison for comparison in comparisons if comparison.theme == theme]
        different = [comparison for comparison in ours if comparison.found]
        names = ", ".join(dict.fromkeys(comparison.change for comparison in ours))
        which = "".join(f"; {c.case}, {c.change}: {', '.join(c.found[:3])}" for c in different)
        cases = len({comparison.case for comparison in ours})
        page.check(
            f"{theme} ({names}), {cases} samplers and posteriors",
            f"{len(different)} of {len(ours)} runs differ{which}",
            "0",
            not different,
        )
    report_effects(page, comparisons)


def report_effects(page: Page, comparisons: list[Comparison]) -> None:
    """That what was changed did change: least numbers of chunks, checkpoints, characters shown and steps at the end."""
    least = {
        name: min((c.effect for c in comparisons if name in (c.theme, c.change)), default=None) for name, _ in EFFECTS
    }
    found = {name: effect for name, effect in least.items() if effect is not None}
    page.check(
        "what was changed did change: least number of chunks (shortest, 3 rows), of checkpoints (every chunk), of "
        "characters shown (progress display)",
        ", ".join(f"{name} {effect}" for name, effect in found.items()),
        ", ".join(f"{name} at least {goal}" for name, goal in EFFECTS if name in found),
        all(found[name] >= goal for name, goal in EFFECTS if name in found),
    )


def digest(result: widebnn.Result) -> str:
    """SHA-256 of all that a run returns."""
    total = hashlib.sha256()
    for group in (result.draws, result.stats):
        for name in sorted(group):
            total.update(name.encode() + group[name].tobytes())
    for leaf in jax.tree.leaves(result.last):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()


def larger_target() -> widebnn.posteriors.NetworkTarget:
    """Large enough for XLA and LAPACK to use several threads."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 5))
    return widebnn.posterior(widebnn.dense(5, [256], "erf"), x, np.sin(x[:, :2]), noise=0.2)


def repeat(runs: int, keep_compiled: bool) -> None:
    """In a fresh process: print one digest per run."""
    with compiled_once() if keep_compiled else contextlib.nullcontext():
        for _ in range(runs):
            target = larger_target()
            collect = widebnn.track(target, np.ones((3, 5)), projections=20)
            run = widebnn.sample(target, steps=10, burn_in=10, chains=2, collect=collect, progress=False)
            print(f"small-{len(affinity())}-{digest(run)}", flush=True)
    x = np.random.default_rng(0).normal(size=(600, 20))
    wide = widebnn.posterior(widebnn.dense(20, [2048], "relu"), x, np.sin(x[:, :1]), noise=0.3, coordinates="weights")
    run = widebnn.sample(wide, "mala", step_size=0.02, steps=10, collect=lambda key, u: {}, progress=False)
    print(f"wide-{len(affinity())}-{digest(run)}", flush=True)


def affinity() -> list[int]:
    """The cores that this process may use, none if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def fit(runs: int) -> None:
    """In a fresh process: print one digest of the predictions per fit."""
    from widebnn.estimators import WideBNNRegressor

    x, y = data()
    settings = {"width": 16, "depth": 1, "activation": "erf", "burn_in": 20, "target_ess": 10, "max_steps": 20}
    for _ in range(runs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = WideBNNRegressor(**settings, random_state=0, progress=False).fit(x, y[:, 0])
        mean, std = model.predict(x, return_std=True)
        found = hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest()
        print(f"small-{len(affinity())}-{found}", flush=True)


def fresh_process(index: int, call: str) -> list[str]:
    """What a call of this module prints in a new process: its surroundings depend on the index."""
    cores = affinity()
    chosen = cores[:1] if index // 2 % 2 else cores
    pin = f"import os; os.sched_setaffinity(0, {chosen}); " if cores else ""
    environment = os.environ | {
        "PYTHONHASHSEED": str(index),
        "OPENBLAS_NUM_THREADS": str(1 + index % 2),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "reliability"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", f"{pin}import invariance; invariance.{call}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout.split()


COMPILING = 4
"""So many of the processes compile for every run."""


def check_repeats(page: Page) -> None:
    """The same seed again and again."""
    for what, processes, runs, call in (
        ("runs", page.count(20, least=4), 5, "repeat({runs}, keep_compiled={keep})"),
        ("fits of the estimator", page.count(2, least=1), 2, "fit({runs})"),
    ):
        printed: list[str] = []
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            calls = [call.format(runs=runs, keep=i >= COMPILING) for i in range(processes)]
            page.progress(f"repeated {what}", 0, processes)
            for i, found in enumerate(pool.map(fresh_process, range(processes), calls)):
                printed += found
                page.progress(f"repeated {what}", i + 1, processes)
        # Another number of cores divides sums differently, and the last bits with them.
        for size, name in (("small", what), ("wide", "runs of a network of width 2 048")):
            digests = [line.split("-") for line in printed if line.startswith(size)]
            cores = sorted({count for _, count, _ in digests})
            different = [len({value for _, own, value in digests if own == count}) for count in cores]
            if digests:
                page.check(
                    f"{len(digests)} {name} with one seed in {processes} processes, different digests for each number "
                    f"of cores ({', '.join(cores)})",
                    ", ".join(map(str, different)),
                    ", ".join("1" for _ in cores),
                    set(different) == {1} and len(digests) == processes * (runs if size == "small" else 1),
                )


def run(page: Page) -> None:
    """Fill the page."""
    check_changes(page)
    check_repeats(page)


if __name__ == "__main__":
    main(__file__, run)
