"""The ``widebnn`` command."""

from __future__ import annotations

import importlib.metadata
import inspect
import io
import json
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from widebnn.commands import evaluate, fit, fit_table, predict
from widebnn.errors import DamageWarning, WidebnnError, readable
from widebnn.runs.command import begin, begun
from widebnn.runs.files import damaged_files, locked, make_folder, output, replacing, write_bytes, write_checksums
from widebnn.unfinished import check_names, check_settings
from widebnn.verbosity import console as new_console
from widebnn.verbosity import is_quiet, progress, with_verbosity

app = typer.Typer(
    help="Exact posterior sampling of wide Bayesian neural networks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Activation(StrEnum):
    """Names of activations, for --help."""

    gelu = "gelu"
    relu = "relu"
    erf = "erf"
    tanh = "tanh"
    sin = "sin"


class Coordinates(StrEnum):
    """Names of coordinate systems, for --help."""

    weights = "weights"
    reparametrised = "reparametrised"
    marginal = "marginal"
    function = "function"
    full = "full"


class Sampler(StrEnum):
    """Names of samplers, for --help."""

    auto = "auto"
    hilbert_hmc = "hilbert_hmc"
    elliptical_slice = "elliptical_slice"
    pcn = "pcn"
    pcnl = "pcnl"
    mala = "mala"
    lmc = "lmc"
    underdamped = "underdamped"
    rwmh = "rwmh"
    hmc = "hmc"


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"widebnn {importlib.metadata.version('widebnn')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact posterior sampling of wide Bayesian neural networks.

    Start with: widebnn sample --out runs/first
    """


def sample(
    data: Annotated[
        str, typer.Option(help="digits, cifar10, mnist, or the path of a .csv table or of an .npz file with x and y.")
    ] = "digits",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the CIFAR-10 or MNIST files.")] = None,
    target_column: Annotated[
        str | None, typer.Option("--target", help="Column of a .csv table to predict.", show_default="the last")
    ] = None,
    classify: Annotated[bool, typer.Option("--classify", help="The target of a .csv table is a class.")] = False,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column of a .csv table to leave out; may be given repeatedly.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Column of a .csv table whose numbers are names of categories; may be given repeatedly."),
    ] = None,
    n_train: Annotated[int, typer.Option(help="Number of training rows, from the first.")] = 256,
    n_test: Annotated[int, typer.Option(help="Number of test rows.")] = 128,
    width: Annotated[int, typer.Option(help="Units per hidden layer.")] = 1024,
    depth: Annotated[int, typer.Option(help="Number of hidden layers.")] = 1,
    activation: Annotated[Activation, typer.Option(help="Activation; gelu is the exact one.")] = Activation.gelu,
    noise: Annotated[float, typer.Option(help="Standard deviation of the observations.")] = 0.1,
    coordinates: Annotated[
        Coordinates,
        typer.Option(
            help="What the chain moves in; all give the same posterior over functions. full is the paper's chain on "
            "all weights, exactly in law, at the cost of function (one hidden layer)."
        ),
    ] = Coordinates.function,
    carry: Annotated[
        bool | None,
        typer.Option(
            help="For function and full coordinates: let the chain carry the function at the test inputs, so that "
            "their autocorrelation is that of the chain; otherwise they are drawn afresh.",
            show_default="with --coordinates full",
        ),
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="Markov kernel; lmc is the paper's name for mala.")] = Sampler.auto,
    step_size: Annotated[
        float | None,
        typer.Option(help="Coefficient of the noise in the proposal.", show_default="tuned during burn-in"),
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Steps per hmc or hilbert_hmc trajectory.")] = None,
    friction: Annotated[float | None, typer.Option(help="Friction of the underdamped chain.", show_default="1")] = None,
    steps: Annotated[int, typer.Option(help="Steps per chain after burn-in.")] = 2000,
    burn_in: Annotated[int, typer.Option(help="Steps per chain that are discarded first.")] = 500,
    thin: Annotated[int, typer.Option(help="Keep every thin-th step.")] = 5,
    chains: Annotated[int, typer.Option(help="Number of independent chains.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same draws.")] = 0,
    dtype: Annotated[str, typer.Option(help="Precision of weights and features: float32 or float64.")] = "float32",
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="With --out: how often the chains are written, so that they can go on.")
    ] = 30.0,
    out: Annotated[Path | None, typer.Option(help="Folder for draws.nc, summary.json and summary.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
) -> None:
    """Sample the posterior of a wide network and report speed, mixing and test error.

    With --out the chains are written while they run: after Ctrl-C, a crash or a power cut widebnn resume goes on.

    Example: widebnn sample --data digits --width 2048 --sampler pcn --step-size 0.2 --out runs/digits
    """
    settings = {
        "data": _absolute(data),
        "data_dir": None if data_dir is None else str(data_dir.absolute()),
        "target_column": target_column,
        "classify": classify,
        "drop": drop or [],
        "text": text or [],
        "n_train": n_train,
        "n_test": n_test,
        "width": width,
        "depth": depth,
        "activation": activation.value,
        "noise": noise,
        "coordinates": coordinates.value,
        "carry": carry,
        "sampler": sampler.value,
        "step_size": step_size,
        "num_steps": num_steps,
        "friction": friction,
        "steps": steps,
        "burn_in": burn_in,
        "thin": thin,
        "chains": chains,
        "seed": seed,
        "dtype": dtype,
        "checkpoint_seconds": checkpoint_seconds,
    }
    if out is None:
        _sample(settings, None, as_json)
        return
    if (out / "summary.json").exists():
        raise WidebnnError(
            f"{out} already holds a run; choose another --out, or make it longer by widebnn resume {out} --steps N."
        )
    with locked(out):
        begin(out, "sample", settings)
        _sample(settings, out, as_json)


def _sample(given: dict[str, Any], folder: Path | None, as_json: bool) -> None:
    """Run, or go on with, what the settings say."""
    check_names("sample", given, SETTINGS)
    # JAX takes a second to import: --help should not wait for it.
    import widebnn
    from widebnn.data import load_dataset
    from widebnn.diagnostics import summarise
    from widebnn.errors import check_integer

    options = {name: given[name] for name in ("step_size", "num_steps", "friction") if given[name] is not None}
    width, depth = check_integer("width", given["width"], 1), check_integer("depth", given["depth"], 1, MOST_LAYERS)
    data_dir = None if given["data_dir"] is None else Path(given["data_dir"])
    dataset = load_dataset(
        given["data"],
        given["n_train"],
        given["n_test"],
        data_dir=data_dir,
        target=given["target_column"],
        **{name: given[name] for name in ("classify", "drop", "text")},
    )
    network = widebnn.dense(dataset.x_train.shape[1], [width] * depth, given["activation"])
    has_test = len(dataset.x_test) > 0
    carried = has_test and (given["coordinates"] == Coordinates.full if given["carry"] is None else given["carry"])
    target = widebnn.posterior(
        network,
        dataset.x_train,
        dataset.y_train,
        noise=given["noise"],
        coordinates=given["coordinates"],
        carry=dataset.x_test if carried else None,
        dtype=given["dtype"],
    )
    result = widebnn.sample(
        target,
        given["sampler"],
        **{name: given[name] for name in ("steps", "burn_in", "thin", "chains", "seed")},
        collect=widebnn.track(target, dataset.x_test if has_test and not carried else None),
        store=None if folder is None else folder / CHAINS,
        progress=progress(),
        checkpoint_seconds=given["checkpoint_seconds"],
        **options,
    )
    summary: dict[str, Any] = {"data": dataset.name, "n_train": len(dataset.x_train), "n_test": len(dataset.x_test)}
    summary |= {name: given[name] for name in ("width", "depth", "activation", "noise", "coordinates")}
    summary |= {"carry": carried, "sampler": given["sampler"], "dtype": given["dtype"], **options}
    summary |= summarise(result, dataset)
    if folder is not None:
        _write(folder, result, dataset, summary)
    _show(summary, folder, new_console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(summary))
    if result.interrupted:
        if folder is not None:
            new_console(stderr=as_json).print(f"Interrupted: widebnn resume {folder} goes on.", highlight=False)
        raise typer.Exit(130)


def resume(
    folder: Annotated[Path, typer.Argument(help="The --out of widebnn sample, or the .run folder of widebnn fit.")],
    steps: Annotated[
        int | None, typer.Option(help="More steps than it was begun with.", show_default="as many as it was begun with")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same draws as if it had not been.

    Example: widebnn resume runs/first
    """
    command, settings = begun(folder)
    check_settings(folder, settings, fit if command == "fit" else sample)
    if command == "fit":
        if steps is not None or as_json:
            raise WidebnnError("--steps and --json are for runs of widebnn sample; leave them out.")
        fit_table(settings)
    else:
        with locked(folder):
            if damaged := damaged_files(folder / CHECKSUMS, OUTPUTS):
                warnings.warn(
                    f"{folder} was damaged ({', '.join(damaged)}): written again from the chains",
                    DamageWarning,
                    stacklevel=1,
                )
            _sample(settings if steps is None else settings | {"steps": steps}, folder, as_json)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for draws.nc, summary.json and summary.png.")] = Path("runs/demo"),
) -> None:
    """Sample a network of width 1024 on the embedded digits, and show how acceptance grows with the width.

    Takes about a minute. Example: widebnn demo --out runs/demo
    """
    if (out / "summary.json").exists():
        raise WidebnnError(f"{out} already holds a run; choose another --out or remove it first.")
    with locked(out):
        make_folder(out)
        _demo(out, new_console())


def _demo(folder: Path, console: Console) -> None:
    import widebnn
    from widebnn.data import load_dataset
    from widebnn.demo import WIDTHS, pcn_acceptance_by_width
    from widebnn.diagnostics import summarise

    dataset = load_dataset("digits", 256, 128)
    target = widebnn.posterior(widebnn.dense(64, [1024]), dataset.x_train, dataset.y_train, carry=dataset.x_test)
    console.print("Sampling the posterior of 1024 GELU units given 256 images of digits ...")
    result = widebnn.sample(
        target, steps=150, burn_in=120, chains=2, collect=widebnn.track(target), progress=progress()
    )
    settings = {"data": "digits", "width": 1024, "depth": 1, "sampler": "auto", "coordinates": "function"}
    summary: dict[str, Any] = settings | summarise(result, dataset)
    acceptance = {}
    for width, rate in pcn_acceptance_by_width(dataset):
        acceptance[width] = rate
        console.print(f"pCN acceptance at width {width}: {rate:.2f} ({len(acceptance)} of {len(WIDTHS)})")
    summary["pcn_acceptance_by_width"] = acceptance
    _write(folder, result, dataset, summary, acceptance)
    ess_per_second = 1000 * (summary["ess_per_step"]["lp"] or 0) / summary["ms_per_step"]
    console.print(
        f"{summary['test_accuracy']:.0%} of test images right, {summary['ms_per_step']:.0f} ms per draw, "
        f"{ess_per_second:.1f} effective draws per second, R-hat {summary['rhat']:.3f}. Picture: {folder}/summary.png"
    )


class Downloadable(StrEnum):
    """Names of data sets, for --help."""

    cifar10 = "cifar10"
    mnist = "mnist"


def download(
    name: Annotated[Downloadable, typer.Argument(help="Which data set.")],
    data_dir: Annotated[Path, typer.Option(help="Folder for its files; pass it to the other commands.")],
) -> None:
    """Fetch a data set over https, check it against its checksum, and unpack what is needed.

    Example: widebnn download cifar10 --data-dir data
    """
    from widebnn.data import download as fetch

    new_console().print(f"{name.value} is in {fetch(name.value, data_dir)}", highlight=False)


class Experiment(StrEnum):
    """Names of experiments, for --help."""

    acceptance = "acceptance"
    ess = "ess"
    rhat = "rhat"
    traces = "traces"
    beyond = "beyond"
    all = "all"


class ScaleName(StrEnum):
    """Names of scales, for --help."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class EngineName(StrEnum):
    """Names of engines, for --help."""

    local = "local"
    ray = "ray"


def reproduce(
    what: Annotated[Experiment, typer.Argument(help="Which experiment; all runs every one.")] = Experiment.all,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: two minutes, a toy to see that all works, speeds mean nothing; laptop: two hours, the paper's "
            "widths and step sizes with short chains; paper: a million steps per cell, days."
        ),
    ] = ScaleName.smoke,
    data: Annotated[str, typer.Option(help="digits, cifar10 or mnist.")] = "digits",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data files.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command resumes it.")] = Path("runs/reproduce"),
    samplers: Annotated[str | None, typer.Option(help="Only these, separated by commas: pcn,pcnl,lmc,...")] = None,
    widths: Annotated[str | None, typer.Option(help="Instead of the scale's, separated by commas.")] = None,
    step_sizes: Annotated[str | None, typer.Option(help="Instead of the scale's, separated by commas.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all chains.")] = 0,
    engine: Annotated[
        EngineName, typer.Option(help="Where cells run: processes of this machine, or a Ray cluster.")
    ] = EngineName.local,
    workers: Annotated[
        int | None, typer.Option(help="Processes of the local engine.", show_default="half the number of cores")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, HOST:PORT or auto.", show_default="one on this machine")
    ] = None,
) -> None:
    """Re-run the paper's experiments and write figures, a table of its numbers beside ours, and report.html.

    Interrupt it whenever you like: finished cells are kept, and the same command resumes the run, with either engine.

    Example: widebnn reproduce all --scale laptop --data cifar10 --data-dir DIR --out runs/paper
    """
    from widebnn.compilation import compile_quickly
    from widebnn.data import load_dataset
    from widebnn.errors import check_choice, check_integer, check_real
    from widebnn.reproduction import EXPERIMENTS, SCALES, plan, run_grid
    from widebnn.reproduction.cells import LABELS, data_checksum
    from widebnn.reproduction.engines import engine_named
    from widebnn.reproduction.grid import write_config
    from widebnn.reproduction.report import write_report

    if scale is ScaleName.smoke:
        compile_quickly()
    size = SCALES[scale.value]
    names = EXPERIMENTS if what is Experiment.all else (what.value,)
    chosen = [check_choice("samplers", name, LABELS) for name in samplers.split(",")] if samplers else None
    own_widths = [check_integer("widths", _whole("widths", text), 1) for text in widths.split(",")] if widths else None
    own_sizes = (
        [check_real("step_sizes", text, above=0, at_most=1) for text in step_sizes.split(",")]  # type: ignore[arg-type]
        if step_sizes
        else None
    )
    dataset = load_dataset(data, size.n_train, size.n_test, data_dir=data_dir)
    cells = plan(names, size, chosen, own_widths, own_sizes, check_integer("seed", seed, 0))
    if not cells:
        raise WidebnnError(f"{what.value} has no cell for samplers {samplers}; leave --samplers out, or run all.")
    config: dict[str, Any] = {
        "data": dataset.name,
        "n_train": len(dataset.x_train),
        "n_test": len(dataset.x_test),
        "scale": scale.value,
        "seed": seed,
        "data_checksum": data_checksum(dataset),
    }
    console = new_console()
    with locked(out):
        write_config(out, config)
        console.print(f"{len(cells)} cells, results in {out}", highlight=False)
        try:
            with engine_named(engine.value, workers, address) as where:
                results = run_grid(cells, dataset, out, console.print if is_quiet() else None, where)
        except KeyboardInterrupt:
            console.print(
                f"Interrupted: finished cells are in {out}; the same command resumes the run.", highlight=False
            )
            raise typer.Exit(130) from None
        summary = write_report(out, results, dataset, size, config)
    for claim in summary["claims"]:
        console.print(f"{claim['verdict']}: {claim['claim']}", highlight=False)
    console.print(f"Wrote report.html, summary.json and figures to {out}", highlight=False)
    if len(results) < len(cells):
        missing = len(cells) - len(results)
        raise WidebnnError(f"{missing} of {len(cells)} cells failed, see the warnings; the report is of the others.")


def _whole(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise WidebnnError(f"{name} must be whole numbers separated by commas, got {text!r}.")
    return int(text)


for command in (sample, resume, demo, fit, predict, evaluate, download, reproduce):
    app.command()(with_verbosity(command))

SETTINGS = inspect.signature(sample).parameters.keys() - {"out", "as_json"}
MOST_LAYERS = 1000
CHAINS = "chains"
"""Where in the folder of a run the chains are kept."""
OUTPUTS = ["draws.nc", "summary.json", "summary.png"]
CHECKSUMS = "SHA256SUMS"
"""Of what a run has written at its end."""


def _absolute(data: str) -> str:
    """The path of a table, wherever the run is resumed from; names of data sets stay."""
    path = Path(data)
    return str(path.absolute()) if path.suffix in (".csv", ".npz") else data


def _write(folder: Path, result, dataset, summary: dict[str, Any], acceptance: dict | None = None) -> None:
    from widebnn.figures import run_figure

    picture = io.BytesIO()
    run_figure(result, dataset, summary, acceptance).savefig(picture, format="png", dpi=150)
    with output(folder):
        with replacing(folder / "draws.nc") as draws:
            result.to_datatree().to_netcdf(draws, engine="h5netcdf")
        write_bytes(folder / "summary.png", picture.getvalue())
        write_bytes(folder / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")
        write_checksums(folder / CHECKSUMS, OUTPUTS)


def _show(summary: dict[str, Any], folder: Path | None, console: Console) -> None:
    ess = summary["ess_per_step"]
    rows = {
        "acceptance rate": summary["acceptance_rate"],
        "milliseconds per step": summary["ms_per_step"],
        "dimension": summary["dimension"],
        "ESS per 1000 steps: log-likelihood": _per_thousand(ess["lp"]),
        "ESS per 1000 steps: predictions, mean": _per_thousand(ess.get("predictions")),
        "ESS per 1000 steps: weights, mean": _per_thousand(ess["weights"]),
        "largest R-hat": summary["rhat"],
        "test RMSE": summary.get("test_rmse"),
        "test accuracy": summary.get("test_accuracy"),
    }
    table = Table(title=f"{summary['sampler']} in {summary['coordinates']} coordinates, width {summary['width']}")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    console.print(table)
    if folder is not None:
        console.print(f"Wrote draws.nc, summary.json and summary.png to {folder}")


def _per_thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def main() -> None:
    """Entry point: bad input is one sentence on stderr and exit code 2, never a traceback."""
    warnings.showwarning = lambda message, *_: _complain(f"warning: {message}")
    try:
        app()
    except WidebnnError as error:
        _complain(f"error: {error}")
        sys.exit(2)
    except OSError as error:
        what = error.filename or "a file"
        _complain(f"error: {what} cannot be used ({error.strerror or error}); check its path and its permissions.")
        sys.exit(2)
    except MemoryError:
        _complain(
            "error: this machine has not enough memory for that; use fewer rows, a smaller width or fewer chains."
        )
        sys.exit(2)


def _complain(line: str) -> None:
    print(readable(line), file=sys.stderr)  # noqa: T201
