"""Settings from the record of a command, checked against the command line."""

from __future__ import annotations

import functools
import os
import types
import typing
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from widebnn.errors import WidebnnError


def check_names(command: str, settings: dict[str, Any], expected: Iterable[str]) -> None:
    """Check that the settings are those that this version of the command has.

    Raises:
        WidebnnError: There are others.
    """
    if set(settings) != set(expected):
        raise WidebnnError(
            f"the run has other settings than widebnn {command} has; resume it with the version that began it."
        )


def check_settings(folder: Path, settings: dict[str, Any], command: Callable[..., None]) -> None:
    """Check settings from a file against the types and ranges of the command line.

    Args:
        folder: The folder of the run.
        settings: As :func:`begun` returns them.
        command: The function of the command, with Typer's annotations.

    Raises:
        WidebnnError: A setting is not one that the command takes, or a fit was moved away from its model.
    """
    hints = _hints(command)
    for name, value in settings.items():
        hint = hints.get("seed" if name == "random_state" else name)
        if hint is not None and not _is_setting(value, *typing.get_args(hint)):
            raise WidebnnError(
                f"{folder} is the run of a command with {name} {value!r}, which it does not take; repeat the command "
                "that began it."
            )
    out = settings.get("out")
    if isinstance(out, str) and not (Path(f"{out}.run").is_dir() and os.path.samefile(f"{out}.run", folder)):
        raise WidebnnError(f"{folder} is the run of a fit to {out}, and not beside it; move it back to {out}.run.")


@functools.cache
def _hints(command: Callable[..., None]) -> dict[str, Any]:
    return typing.get_type_hints(command, include_extras=True)


def _is_setting(value: Any, kind: Any, *notes: Any) -> bool:
    """Whether a value from JSON fits Annotated[kind, *notes]."""
    if type(value) in (int, float):
        for limits in (note for note in notes if hasattr(note, "min")):
            if (limits.min is not None and value < limits.min) or (limits.max is not None and value > limits.max):
                return False
    return any(_is_kind(value, one) for one in (typing.get_args(kind) if isinstance(kind, types.UnionType) else [kind]))


def _is_kind(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if issubclass(kind, StrEnum):
        return value in list(kind)
    if issubclass(kind, (str, Path)):
        return isinstance(value, str)
    return type(value) is kind or (kind is float and type(value) is int)
