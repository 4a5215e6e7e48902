"""How much a command says: --quiet, nothing, or --verbose."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from rich.console import Console

from widebnn.errors import WidebnnError, readable

NOTES, NOTE = 2, 200
"""Notes, and characters of a note, that are shown without --verbose."""
_level = ContextVar("verbosity", default=0)
OPTIONS = {
    "quiet": Annotated[
        bool, typer.Option("--quiet", "-q", help="Print warnings and errors only, and what --json asks for.")
    ],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Print all notes, and what was chosen, in full.")],
}


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """The same command of a Typer app with the options --quiet and --verbose, which hold while it runs.

    Args:
        command: A function with annotated parameters, none of them named ``quiet`` or ``verbose``.

    Returns:
        A function for ``typer.Typer.command()``.
    """

    @functools.wraps(command)
    def run(*arguments: Any, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet and verbose:
            raise WidebnnError("--quiet and --verbose cannot both be given; leave one out.")
        token = _level.set(int(verbose) - int(quiet))
        try:
            command(*arguments, **options)
        finally:
            _level.reset(token)

    signature = inspect.signature(command, eval_str=True)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in OPTIONS.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *own])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **OPTIONS}
    return run


def is_quiet() -> bool:
    """Whether the running command has --quiet."""
    return _level.get() < 0


def is_verbose() -> bool:
    """Whether the running command has --verbose."""
    return _level.get() > 0


def console(*, stderr: bool = False) -> Console:
    """Where a command says what it does; with --quiet, nowhere."""
    return Console(stderr=stderr, quiet=is_quiet())


def progress() -> bool | None:
    """The ``progress`` of :func:`widebnn.sample` for the running command."""
    return False if is_quiet() else None


def say(console: Console, line: str) -> None:
    """Print a line as it is: not wrapped, and brackets are no markup."""
    console.print(readable(line), highlight=False, markup=False, soft_wrap=True)


def say_notes(console: Console, notes: list[str]) -> None:
    """Print notes on the input: all with --verbose, otherwise the first few and how many there are."""
    shown = notes if is_verbose() else [_shortened(note) for note in notes[:NOTES]]
    for note in shown:
        say(console, f"note: {note}")
    if more := len(notes) - len(shown):
        say(console, f"{more} more note{'s' if more > 1 else ''} with --verbose")


def _shortened(note: str) -> str:
    return note if len(note) <= NOTE else f"{note[:NOTE]} ... (--verbose shows the rest)"
