"""Which command a folder belongs to, so that it can be gone on with."""

from __future__ import annotations

import functools
import os
import types
import typing
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from widebnn.durable import LOCK, DamageError, make_folder, output, read_record, write_record
from widebnn.errors import WidebnnError

NAME = "command"


def begin(folder: Path, command: str, settings: dict[str, Any]) -> bool:
    """Note the command in its folder, or find the same one there (True); refuse to mix two.

    A command that ended before any chain was written, as for a setting that was wrong, leaves nothing to mix with.
    The folder of a fit is removed in the end, and must be its own. The caller has locked the folder: otherwise two
    commands could both find it empty.
    """
    others = folder.exists() and any(path.name != LOCK for path in folder.iterdir())
    if command == "fit" and others and not (folder / NAME).exists():
        raise WidebnnError(
            f"{folder} is needed for the run and has something else in it; move that or choose another --out."
        )
    if (folder / NAME).exists() and any(path.is_dir() for path in folder.iterdir()):
        before, old = begun(folder)
        changed = [name for name in settings if old.get(name) != settings[name]]
        if before != command or changed:
            listed = ", ".join(f"{name} {old.get(name)}" for name in changed) or f"widebnn {before}"
            raise WidebnnError(
                f"{folder} holds an unfinished run with {listed}; go on with it by widebnn resume {folder}, or choose "
                "another --out."
            )
        return True
    make_folder(folder)
    with output(folder / NAME):
        write_record(folder / NAME, {"kind": "command", "command": command, "settings": settings}, {})
    return False


def begun(folder: Path) -> tuple[str, dict[str, Any]]:
    """The command and its settings."""
    if not (folder / NAME).is_file():
        raise WidebnnError(
            f"{folder} holds no run to go on with; give the --out of widebnn sample, or the .run folder of widebnn fit."
        )
    try:
        header = read_record(folder / NAME, "command").header
    except DamageError as error:
        raise WidebnnError(f"{folder} is damaged ({error}); give the command that began it again.") from None
    command, settings = header.get("command"), header.get("settings")
    if command not in ("sample", "fit") or not isinstance(settings, dict):
        raise WidebnnError(f"{folder} is the run of a command that this widebnn does not know; upgrade it.")
    return command, settings


def check_names(command: str, settings: dict[str, Any], expected: Iterable[str]) -> None:
    """Whether they are the settings of the command; another version may have had others."""
    if set(settings) != set(expected):
        raise WidebnnError(
            f"the run was begun with other settings than widebnn {command} has; go on with the widebnn that began it."
        )


def check_settings(folder: Path, settings: dict[str, Any], command: Callable[..., None]) -> None:
    """Whether settings from a file are such as the command line takes; and whether a fit belongs into its folder."""
    hints = _hints(command)
    for name, value in settings.items():
        hint = hints.get({"random_state": "seed"}.get(name, name))
        if hint is not None and not _is_setting(value, hint):
            raise WidebnnError(
                f"{folder} is the run of a command with {name} {value!r}, which it does not take; give the command "
                "that began it again."
            )
    out = settings.get("out")
    if isinstance(out, str) and not (Path(f"{out}.run").is_dir() and os.path.samefile(f"{out}.run", folder)):
        raise WidebnnError(f"{folder} is the run of a fit to {out}, and not beside it; move it back to {out}.run.")


@functools.cache
def _hints(command: Callable[..., None]) -> dict[str, Any]:
    return typing.get_type_hints(command, include_extras=True)


def _is_setting(value: Any, hint: Any) -> bool:
    kind, *notes = typing.get_args(hint)  # Annotated
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    limits = [(note.min, note.max) for note in notes if hasattr(note, "min")]
    if type(value) in (int, float) and any(
        (low is not None and value < low) or (high is not None and value > high) for low, high in limits
    ):
        return False
    return any(_is_kind(value, one) for one in kinds)


def _is_kind(value: Any, kind: Any) -> bool:
    """Whether a value from JSON stands for one of a type of the command line."""
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if issubclass(kind, StrEnum):
        return value in list(kind)
    if issubclass(kind, (str, Path)):
        return isinstance(value, str)
    return type(value) is kind or (kind is float and type(value) is int)
