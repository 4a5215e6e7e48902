"""The ``widebnn`` command: it parses options, calls the library and prints what comes back.

Most options are those of a library function: their types and defaults come from its signature, their help from the
``Args`` of its docstring. Messages go to stderr, results to stdout.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import json
import logging
import math
import os
import re
import sys
import typing
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from widebnn import experiments, names, tables
from widebnn.errors import Note, WidebnnError, readable
from widebnn.reproduction import reproduce as reproduction

log = logging.getLogger("widebnn")
FEW_NOTES = 2
"""Notes on the data that are printed unless --verbose is given."""
HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)
AsJson = Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")]
Out = Annotated[Path | None, typer.Option(help="Folder for draws.nc, summary.json and summary.png.")]
DataDir = Annotated[Path, typer.Option(help="Folder for its files; pass it to the other commands.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings, errors and what --json asks for only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print all notes on the data in full.")]


def command(library: Callable[..., Any] | None = None) -> Callable[[Callable[..., None]], None]:
    """Register a function as a command, with --quiet and --verbose.

    The parameters of ``library``, a function or dataclass, become options (keyword-only ones) and arguments, which the
    command gets as a dictionary, with ``progress``. Their help is in the ``Args`` of its docstring, whose summary, if
    it is a function, is that of the command. The command's own parameters are annotated as Typer wants them.
    """

    def register(function: Callable[..., None]) -> None:
        taken = {} if library is None else _options(library)

        def run(quiet: Quiet = False, verbose: Verbose = False, **given: Any) -> None:
            if quiet and verbose:
                raise WidebnnError("--quiet and --verbose cannot both be given; leave one out.")
            log.handlers = [_Lines()]
            log.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
            settings = {name: given.pop(name) for name in taken} | {"progress": False if quiet else None}
            try:
                function(settings, **given)
            except KeyboardInterrupt:
                # A program may still run in JAX's threads, and the interpreter would crash if it took its data away.
                sys.stdout.flush()
                os._exit(130)

        own = {name: one for each in (function, run) for name, one in _signature(each).items() if name not in ignored}
        parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (taken | own).values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        documented = [library, function] if inspect.isfunction(library) else [function]
        texts = [(inspect.getdoc(each) or "").partition("\n\nArgs:")[0] for each in documented]
        app.command(function.__name__, help="\n\n".join(texts))(run)

    ignored = ("settings", "_", "given")
    return register


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function, eval_str=True).parameters


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or dataclass as Typer has them, with help from its docstring."""
    documented = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", documented, re.MULTILINE)
    options = {}
    for name, text in entries:
        parameter = _signature(function)[name]
        hint, default = parameter.annotation, parameter.default
        if typing.get_origin(hint) is list:
            default = []
        elif str in (parts := typing.get_args(hint)):  # whatever else it may be in Python
            hint = Path if os.PathLike[str] in parts else str
            hint = hint | None if default is None else hint
        flags = [f"--{name}"] if default is False else []
        make: Any = typer.Option if parameter.kind is parameter.KEYWORD_ONLY else typer.Argument
        annotation = Annotated[hint, make(*flags, help=" ".join(text.split()))]  # type: ignore[valid-type]
        options[name] = parameter.replace(annotation=annotation, default=default)
    return {name: option for name, option in options.items() if name != "progress"}


class _Lines(logging.Handler):
    """Messages of the library, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        _print_line(record.getMessage())


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Exact posterior sampling of wide Bayesian neural networks.

    Start with: widebnn sample --out runs/first
    """
    if version:
        typer.echo(f"widebnn {importlib.metadata.version('widebnn')}")
        raise typer.Exit


@command(experiments.Experiment)
def sample(settings: dict[str, Any], out: Out = None, as_json: AsJson = False) -> None:
    """Sample the posterior of a wide network and report speed, mixing and test error.

    With --out the chains are written while they run: after Ctrl-C, a crash or a power cut widebnn resume continues.

    Example: widebnn sample --data digits --width 2048 --sampler pcn --step-size 0.2 --out runs/digits
    """
    progress = settings.pop("progress")
    _show_run(experiments.Experiment(**settings).run(out, progress=progress), out, as_json)


@command(experiments.resume)
def resume(settings: dict[str, Any], as_json: AsJson = False) -> None:
    """Example: widebnn resume runs/first"""
    found = experiments.resume(**settings)
    if isinstance(found, tables.TableModel):
        _show("the model", tables.describe_model(found), as_json)
    else:
        _show_run(found, settings["folder"], as_json)


@command(experiments.demo)
def demo(settings: dict[str, Any]) -> None:
    """Example: widebnn demo --out runs/demo"""
    _show_run(experiments.demo(**settings), settings["out"], as_json=False)


@command(tables.TableFit)
def fit(settings: dict[str, Any]) -> None:
    """Fit a wide Bayesian neural network to a table and save it.

    Columns of numbers are used as they are; columns of text become a 0/1 input for each value. Missing values may
    stay empty: numbers get the median and a 0/1 input that says so. Rows without a target are left out. Cells are
    separated by commas, semicolons or tabs. Chains run for as many effective draws as wanted, or for --max-minutes:
    thousands of rows or little noise take longer. A table for which that time is far too short is refused before
    anything runs.

    Example: widebnn fit train.csv --target price --out model
    """
    progress = settings.pop("progress")
    _show("the model", tables.describe_model(tables.TableFit(**settings).run(progress=progress)))
    log.info(f"Next: widebnn predict {settings['out']} new.csv --out predictions.csv")


@command(tables.predict_table)
def predict(settings: dict[str, Any]) -> None:
    """Without --out the lines go to standard output.

    Example: widebnn predict model new.csv --out predictions.csv
    """
    predictions = tables.predict_table(**settings)
    if settings["out"] is None:
        typer.echo(tables.to_csv(predictions), nl=False)


@command(tables.evaluate_table)
def evaluate(settings: dict[str, Any], as_json: AsJson = False) -> None:
    """Example: widebnn evaluate model test.csv --out evaluation"""
    _show(str(settings["table"]), tables.evaluate_table(**settings), as_json)


@command()
def download(
    _: dict[str, Any], name: Annotated[names.Download, typer.Argument(help="Which data set.")], data_dir: DataDir
) -> None:
    """Fetch a data set over https, check it against its checksum, and unpack what is needed.

    Example: widebnn download cifar10 --data-dir data
    """
    from widebnn import data

    log.info(f"{name} is in {data.download(name, data_dir)}")


@command(reproduction.reproduce)
def reproduce(settings: dict[str, Any]) -> None:
    """Example: widebnn reproduce all --scale laptop --data cifar10 --data-dir DIR --out runs/paper"""
    for claim in reproduction.reproduce(**settings)["claims"]:
        log.info(f"{claim['verdict']}: {claim['claim']}")


def _show_run(summary: dict[str, Any], folder: Path | str | None, as_json: bool) -> None:
    """The numbers that matter of a summary, all of it as JSON, and the exit code of an interrupted run."""
    rows = {"acceptance rate": summary["acceptance_rate"], "milliseconds per step": summary["ms_per_step"]}
    rows["dimension"] = summary["dimension"]
    for name, words in (("lp", "log-likelihood"), ("predictions", "predictions, mean"), ("weights", "weights, mean")):
        if name in summary["ess_per_step"]:
            rows[f"ESS per 1000 steps: {words}"] = 1000 * (summary["ess_per_step"][name] or math.nan)
    rows |= {"largest R-hat": summary["rhat"], "test RMSE": summary.get("test_rmse")}
    rows["test accuracy"] = summary.get("test_accuracy")
    title = f"{summary['sampler']} in {summary['coordinates']} coordinates, width {summary['width']}"
    _show(title, rows, as_json, summary)
    if summary["interrupted"]:
        log.warning("Interrupted." if folder is None else f"Interrupted: widebnn resume {folder} continues.")
        raise typer.Exit(130)


def _show(title: str, rows: dict[str, Any], as_json: bool = False, document: dict[str, Any] | None = None) -> None:
    """A table, unless --quiet was given; with ``as_json`` on stderr, and the document (the rows) on stdout."""
    if log.isEnabledFor(logging.INFO):
        table = Table("quantity", title=escape(readable(title)))
        table.add_column("value", justify="right")
        for name, value in rows.items():
            if value is not None:
                table.add_row(escape(name), f"{value:.4g}" if isinstance(value, float) else escape(f"{value}"))
        Console(stderr=as_json).print(table)
    if as_json:
        typer.echo(json.dumps(rows if document is None else document))


def _print_line(line: str) -> None:
    print(readable(line), file=sys.stderr)  # noqa: T201


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2, never a traceback."""
    notes = itertools.count(1)

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if category is not Note:
            _print_line(f"warning: {message}")
        elif (count := next(notes)) <= FEW_NOTES or log.isEnabledFor(logging.DEBUG):
            log.info(f"note: {message}")
        elif count == FEW_NOTES + 1:
            log.info("There are more notes: --verbose shows them.")

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        app()
    except WidebnnError as error:
        problem = str(error)
    except OSError as error:
        what = error.filename or "a file"
        problem = f"{what} cannot be used ({error.strerror or error}); check its path and its permissions."
    except MemoryError:
        problem = "this machine has not enough memory for that; use fewer rows, a smaller width or fewer chains."
    _print_line(f"error: {problem}")
    sys.exit(2)
