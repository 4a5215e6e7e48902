"""Runs on a data set and their folder: what ``widebnn sample``, ``resume`` and ``demo`` do.

Modules that import JAX are imported where they are used, so that ``widebnn --help`` need not wait for them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widebnn.errors import DamageWarning, WidebnnError, check_fields, check_integer, check_real
from widebnn.names import Activation, Coordinates, Dtype, Sampler
from widebnn.runs.command import begin, begun
from widebnn.runs.files import damaged_files, locked, make_folder, output, replacing, write_bytes, write_checksums
from widebnn.tables import TableFit, TableModel

if TYPE_CHECKING:
    from widebnn.data import Dataset
    from widebnn.sampling import Result

log = logging.getLogger("widebnn")
OUTPUTS = ["draws.nc", "summary.json", "summary.png"]
CHECKSUMS = "SHA256SUMS"
"""Of the outputs, as sha256sum -c reads it."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A data set, a network and chains that sample its posterior.

    Args:
        data: digits, cifar10, mnist, or the path of a .csv table or of an .npz file with x and y.
        data_dir: Folder of the CIFAR-10 or MNIST files.
        target: Column of a .csv table to predict; by default the last.
        classify: The target of a .csv table is a class.
        drop: Column of a .csv table to leave out; may be given repeatedly.
        text: Column of a .csv table whose numbers are names of categories; may be given repeatedly.
        n_train: Number of training rows, from the first.
        n_test: Number of test rows.
        width: Units per hidden layer.
        depth: Number of hidden layers.
        activation: Activation; gelu is the exact one.
        noise: Standard deviation of the observations.
        coordinates: What the chain moves in; all give the same posterior over functions. full is the paper's chain on
            all weights, exactly in distribution, at the cost of function (one hidden layer).
        carry: For function and full coordinates: the chain carries the function at the test inputs, which has its
            autocorrelation, instead of drawing it afresh. By default with full coordinates.
        sampler: Markov kernel; lmc is the paper's name for mala.
        step_size: Coefficient of the noise in the proposal; by default tuned during burn-in.
        num_steps: Steps per hmc or hilbert_hmc trajectory.
        friction: Friction of the underdamped chain; by default 1.
        steps: Steps per chain after burn-in.
        burn_in: Steps per chain that are discarded first.
        thin: Keep every thin-th step.
        chains: Number of independent chains.
        seed: Seed; the same seed gives the same draws.
        dtype: Precision of weights and features.
        checkpoint_seconds: How often the chains are written to the folder of the run, if it has one.

    Raises:
        WidebnnError: A setting has the wrong type; ranges are checked by ``run``.

    Examples:
        >>> Experiment(data="digits", width=2048, sampler="pcn", step_size=0.2).run("runs/digits")
    """

    data: str = "digits"
    data_dir: str | os.PathLike[str] | None = None
    target: str | None = None
    classify: bool = False
    drop: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    n_train: int = 256
    n_test: int = 128
    width: int = 1024
    depth: int = 1
    activation: Activation = "gelu"
    noise: float = 0.1
    coordinates: Coordinates = "function"
    carry: bool | None = None
    sampler: Sampler = "auto"
    step_size: float | None = None
    num_steps: int | None = None
    friction: float | None = None
    steps: int = 2000
    burn_in: int = 500
    thin: int = 5
    chains: int = 2
    seed: int = 0
    dtype: Dtype = "float32"
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_real("checkpoint_seconds", self.checkpoint_seconds, at_least=0)
        for name, is_path in (("data", self.data.endswith((".csv", ".npz"))), ("data_dir", self.data_dir is not None)):
            if is_path:  # a run may be resumed from another folder
                object.__setattr__(self, name, os.path.abspath(getattr(self, name)))

    def run(self, out: str | os.PathLike[str] | None = None, *, progress: bool | None = None) -> dict[str, Any]:
        """Sample, and write ``draws.nc``, ``summary.json`` and ``summary.png``.

        Args:
            out: Folder of the run. The chains are written there while they run, so that ``resume`` can continue
                them after Ctrl-C, a crash or a power cut.
            progress: Whether to show a progress bar; by default on terminals.

        Returns:
            The summary: settings, acceptance, speed, effective sample size, R-hat, test error.

        Raises:
            WidebnnError: A setting is wrong, or ``out`` holds a run.
        """
        if out is None:
            return self._sample(None, progress)[2]
        folder = Path(out)
        if (folder / "summary.json").exists():
            advice = f"choose another --out, or make the run longer by widebnn resume {folder} --steps N"
            raise WidebnnError(f"{folder} already holds a run; {advice}.")
        with locked(folder):
            begin(folder, "sample", asdict(self))
            return _write(folder, *self._sample(folder, progress))

    def _sample(self, folder: Path | None, progress: bool | None) -> tuple[Result, Dataset, dict[str, Any]]:
        """Run or resume in a folder that is locked."""
        import widebnn
        from widebnn.data import load_dataset
        from widebnn.diagnostics import summarise

        given = asdict(self)

        def some(*names: str) -> dict[str, Any]:
            return {name: given[name] for name in names if given[name] is not None}

        widths = [check_integer("width", self.width, 1)] * check_integer("depth", self.depth, 1, 1000)
        data = load_dataset(self.data, **some("n_train", "n_test", "data_dir", "target", "classify", "drop", "text"))
        network = widebnn.dense(data.x_train.shape[1], widths, self.activation)
        x_test = data.x_test if len(data.x_test) else None
        carried = x_test if self.carry or (self.carry is None and self.coordinates == "full") else None
        options = some("noise", "coordinates", "dtype")
        target = widebnn.posterior(network, data.x_train, data.y_train, carry=carried, **options)
        collect = widebnn.track(target, x_test if carried is None else None)
        tuning = some("step_size", "num_steps", "friction")
        length = some("steps", "burn_in", "thin", "chains", "seed", "checkpoint_seconds")
        store = None if folder is None else folder / "chains"
        result = widebnn.sample(
            target, self.sampler, collect=collect, store=store, progress=progress, **length, **tuning
        )
        summary = {"data": data.name, "n_train": len(data.x_train), "n_test": len(data.x_test)}
        summary |= some("width", "depth", "activation", "noise", "coordinates", "sampler", "dtype")
        summary |= {"carry": carried is not None} | tuning | summarise(result, data)
        return result, data, summary


def resume(
    folder: str | os.PathLike[str], *, steps: int | None = None, progress: bool | None = None
) -> dict[str, Any] | TableModel:
    """Resume a run that was stopped or killed; it ends with the same draws as if it had not been.

    Args:
        folder: The --out of widebnn sample, or the .run folder of widebnn fit.
        steps: More steps than the run was begun with, of widebnn sample; by default the same number.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        The summary of ``Experiment.run``, or the model of ``widebnn.tables.TableFit.run``.

    Raises:
        WidebnnError: There is no run to resume, or it cannot be resumed.

    Examples:
        >>> resume("runs/digits", steps=4000)
    """
    folder = Path(folder)
    command, settings = begun(folder)
    if command == "reproduce":
        raise WidebnnError(f"{folder} is a run of widebnn reproduce; repeat that command to resume it.")
    if command == "fit":
        if steps is not None:
            raise WidebnnError("steps are for runs of widebnn sample, and this is one of widebnn fit; leave them out.")
        fit = _restored(TableFit, folder, settings)
        if not (fit.running.is_dir() and os.path.samefile(fit.running, folder)):
            problem = f"{folder} is the run of a fit to {fit.out}, and not beside it"
            raise WidebnnError(f"{problem}; move it to {fit.running}.")
        return fit.run(progress=progress)
    experiment = _restored(Experiment, folder, settings if steps is None else settings | {"steps": steps})
    with locked(folder):
        if corrupted := damaged_files(folder / CHECKSUMS, OUTPUTS):
            problem = f"{folder} has corrupted files ({', '.join(corrupted)}): rewritten from the chains"
            warnings.warn(problem, DamageWarning, stacklevel=2)
        return _write(folder, *experiment._sample(folder, progress))


def _restored(kind: Any, folder: Path, settings: dict[str, Any]) -> Any:
    """Settings from a file, which may come from another version or from anybody."""
    if set(settings) != {one.name for one in dataclasses.fields(kind)}:
        problem = f"{folder} has other settings than this version of widebnn"
        raise WidebnnError(f"{problem}; resume with the version that began it.")
    return kind(**settings)


def demo(*, out: str | os.PathLike[str] = "runs/demo", progress: bool | None = None) -> dict[str, Any]:
    """Sample a network of width 1024 on the embedded digits, and show how acceptance grows with the width.

    Takes about a minute.

    Args:
        out: Folder for draws.nc, summary.json and summary.png.
        progress: Whether to show a progress bar; by default on terminals.

    Returns:
        The summary, as of ``Experiment.run``, and ``pcn_acceptance_by_width``.

    Raises:
        WidebnnError: ``out`` holds a run, or cannot be written.

    Examples:
        >>> demo(out="runs/demo")["pcn_acceptance_by_width"]
    """
    import jax

    import widebnn

    folder = Path(out)
    if (folder / "summary.json").exists():
        raise WidebnnError(f"{folder} already holds a run; choose another --out or remove it first.")
    with locked(folder):
        make_folder(folder)
        log.info("Sampling the posterior of 1024 GELU units given 256 images of digits ...")
        experiment = Experiment(carry=True, steps=150, burn_in=120, thin=1)
        result, data, summary = experiment._sample(None, progress)
        rates = summary["pcn_acceptance_by_width"] = {}
        for width in (256, 512, 1024, 2048):
            target = widebnn.posterior(widebnn.dense(64, [width]), data.x_train, data.y_train)
            kernel = widebnn.samplers.pcn(target.log_likelihood, 0.1)

            # pCN decorrelates slowly at small widths: fresh proposals are averaged at draws of the default sampler.
            def rate(key: Any, u: Any, kernel: Any = kernel) -> Any:
                state, keys = kernel.init(u), jax.random.split(key, 8)
                return {"rate": sum(kernel.step(one, state)[1].acceptance_rate for one in keys) / len(keys)}

            draws = widebnn.sample(target, "auto", steps=25, burn_in=40, collect=rate, progress=False).draws
            rates[width] = float(draws["rate"].mean())
            log.info(f"pCN acceptance at width {width}: {rates[width]:.2f}")
        return _write(folder, result, data, summary)


def _write(folder: Path, result: Result, dataset: Dataset, summary: dict[str, Any]) -> dict[str, Any]:
    """Write the outputs of a run and return its summary."""
    from widebnn.figures import run_figure

    run_figure(result, dataset, summary).savefig(picture := io.BytesIO(), format="png", dpi=150)
    with output(folder):
        with replacing(folder / "draws.nc") as draws:
            result.to_datatree().to_netcdf(draws, engine="h5netcdf")
        write_bytes(folder / "summary.png", picture.getvalue())
        write_bytes(folder / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")
        write_checksums(folder / CHECKSUMS, OUTPUTS)
    log.info(f"Wrote {', '.join(OUTPUTS)} to {folder}")
    return summary
