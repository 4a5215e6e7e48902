"""The command that began a run, so that ``widebnn resume`` can repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from widebnn.errors import WidebnnError
from widebnn.runs.files import LOCK, DamageError, make_folder, output, read_record, write_record

NAME = "command"


def begin(folder: Path, command: str, settings: dict[str, Any]) -> bool:
    """Write a command and its settings to a locked folder; True if the same was begun there before.

    A command that ended before any chain was written, as for a wrong setting, leaves nothing to resume. The folder of a
    fit, which is removed in the end, must hold nothing else.
    """
    there = [path for path in folder.iterdir() if path.name != LOCK]
    is_known = (folder / NAME).exists()
    if command == "fit" and there and not is_known:
        raise WidebnnError(f"{folder} is needed for the run and holds other files; move them or choose another --out.")
    if is_known and any(path.is_dir() for path in there):
        before, old = begun(folder)
        changed = [f"{name} {old.get(name)}" for name in settings if old.get(name) != settings[name]]
        if before != command or changed:
            listed = ", ".join(changed) if before == command else f"widebnn {before}"
            advice = "resume it with the same settings and data, or choose another --out"
            raise WidebnnError(f"{folder} holds a run with {listed}; {advice}.")
        return True
    make_folder(folder)
    with output(folder / NAME):
        write_record(folder / NAME, {"kind": "command", "command": command, "settings": settings}, {})
    return False


def begun(folder: Path) -> tuple[str, dict[str, Any]]:
    """The command that began a run, and its settings."""
    if not (folder / NAME).is_file():
        raise WidebnnError(
            f"{folder} holds no run to resume; give the --out of widebnn sample, or the .run folder of widebnn fit."
        )
    try:
        header = read_record(folder / NAME, "command").header
    except DamageError as error:
        problem = f"{folder} is corrupted ({error})"
        raise WidebnnError(f"{problem}; remove {folder / NAME} and repeat the command that began it.") from None
    command, settings = header.get("command"), header.get("settings")
    if command not in ("sample", "fit", "reproduce") or not isinstance(settings, dict):
        raise WidebnnError(f"{folder} is the run of a command that this widebnn does not know; upgrade it.")
    return command, settings
