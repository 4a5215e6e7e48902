"""Which command a folder belongs to, so that it can be gone on with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from widebnn.durable import DamageError, read_record, write_record
from widebnn.errors import WidebnnError

NAME = "command"


def begin(folder: Path, command: str, settings: dict[str, Any]) -> bool:
    """Note the command in its folder, or find the same one there (True); refuse to mix two.

    A command that ended before any chain was written, as for a setting that was wrong, leaves nothing to mix with.
    """
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
    write_record(folder / NAME, {"kind": "command", "command": command, "settings": settings}, {})
    return False


def make_folder(folder: Path) -> None:
    """For what a command writes; before it does any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WidebnnError(f"the folder {folder} cannot be made ({error.strerror}); choose another --out.") from None


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
