"""The rule that no stage imports a later one; part of ``make lint``.

    python tools/layers.py [FOLDER]

``STAGES`` lists the modules of the package in the order of the work: a module may import from its own stage and from
earlier ones. ``FORBIDDEN`` adds what the order alone does not say. Every violation is printed with its file and line,
also those inside functions, and the exit code is 1.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGES = (
    ("errors", "names"),
    ("precision", "noise", "linalg", "compilation"),
    ("networks",),
    ("limits", "likelihoods"),
    ("coordinates",),
    ("samplers",),
    ("posteriors",),
    ("runs",),
    ("sampling",),
    ("data", "diagnostics"),
    ("estimators", "figures"),
    ("tables", "experiments"),
    ("reproduction",),
    ("cli",),
)
FORBIDDEN = {
    "samplers": ("networks", "limits", "likelihoods", "coordinates"),
    "likelihoods": ("networks", "limits"),
    "limits": ("likelihoods",),
    "data": ("sampling", "posteriors", "samplers"),
}
"""Module -> what it knows nothing of, although that comes earlier or beside it."""
LEVEL = {name: level for level, names in enumerate(STAGES) for name in names}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name of the module below widebnn) of every import of the package; names for type checkers count too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" if node.module == "widebnn" else node.module for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "widebnn" and len(parts) > 1 and parts[1] in LEVEL:
                yield node.lineno, parts[1]


def violations(package: Path) -> Iterator[str]:
    """A sentence for every import of a later stage, and for every module that has no stage."""
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        if module not in LEVEL:
            yield f"{path}: {module} is in no stage; add it to STAGES in tools/layers.py."
            continue
        for line, name in imported(path):
            if LEVEL[name] > LEVEL[module] or name in FORBIDDEN.get(module, ()):
                yield f"{path}:{line}: {module} must know nothing of {name}."


def main(package: Path) -> int:
    """Print the violations; 1 if there are any."""
    found = list(violations(package))
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "widebnn"))
