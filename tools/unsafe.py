"""The rule against what runs code that a file holds, or writes where a file says; part of ``make lint``.

    python tools/unsafe.py

No pickle and no relative of it, no ``allow_pickle`` but False, no ``yaml.load``, no eval and exec, no unpacking of
archives to the names in them: in all Python files and in the Python examples of the documentation. Every use is printed
with its file, its line and a sentence, and the exit code is 1. Files that must have one are excepted by name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs", "tools")
ALLOWED: dict[str, tuple[frozenset[str], str]] = {
    "tests/sampling/test_processes.py": (
        frozenset({"joblib"}),
        "runs fits in joblib's processes, as users do, and loads no file",
    ),
}
"""What a file may use, and why."""
MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle")
LOADERS = {
    "yaml": ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"),
    "torch": ("load",),
    "pandas": ("read_pickle",),
    "pd": ("read_pickle",),
    "shutil": ("unpack_archive",),
    "builtins": ("eval", "exec"),
}
"""Functions by the module they are in, or by the name it usually has."""
ARCHIVES = ("tarfile", "zipfile")
SENTENCES = {
    "import": "{} runs code that a file holds; use JSON, records of widebnn.runs, or NumPy without pickle.",
    "array": "{} must be False, for a pickled array runs code that the file holds.",
    "load": "{} makes any object that a file names; use a loader of plain data.",
    "eval": "{} runs text as code; parse it instead.",
    "extract": "{} writes where an archive says; copy members to names of your own.",
}

Found = tuple[int, str, str]
"""Line, what is used, a sentence."""


def uses(tree: ast.AST) -> Iterator[Found]:
    """Everything forbidden in a program."""
    archives = any(name in ARCHIVES for node in ast.walk(tree) for name in _imported(node))
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.split(".")[0] in MODULES:
                yield _found(node, "import", name.split(".")[0])
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in LOADERS.get(node.module or "", ()):
                    yield _found(node, "load", f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            yield _found(node, "eval", node.id)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if node.attr in LOADERS.get(owner, ()):
                yield _found(node, "load", f"{owner}.{node.attr}")
            elif node.attr == "extractall" or (node.attr == "extract" and archives):
                yield _found(node, "extract", node.attr)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not _is_false(node.value):
            yield _found(node, "array", "allow_pickle")
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "allow_pickle" and not _is_false(value):
                    yield _found(key, "array", "allow_pickle")


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement or a call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = ast.unparse(node.func)
        if name in ("__import__", "import_module", "importlib.import_module"):
            return [str(node.args[0].value)]
    return []


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _found(node: ast.AST, kind: str, what: str) -> Found:
    return node.lineno, what, SENTENCES[kind].format(what)  # type: ignore[attr-defined]


def programs(path: Path) -> Iterator[tuple[int, str]]:
    """The Python in a file: all of it, or the examples of a page, each with the number of lines before it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield 0, text
    else:
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield text[: match.start(1)].count("\n"), match[1]


def check(path: Path, root: Path) -> list[str]:
    """A line for everything forbidden in a file, and for exceptions that it does not need."""
    name = path.relative_to(root).as_posix()
    allowed, _ = ALLOWED.get(name, (frozenset[str](), ""))
    found: list[Found] = []
    for before, text in programs(path):
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            return [f"{name}:{before + (error.lineno or 1)}: this is not Python, and cannot be checked."]
        found += [(before + line, what, sentence) for line, what, sentence in uses(tree)]
    lines = [f"{name}:{line}: {sentence}" for line, what, sentence in sorted(found) if what not in allowed]
    unneeded = sorted(allowed - {what for _, what, _ in found})
    return lines + [f"{name}:1: {what} is not used here any more; remove the exception." for what in unneeded]


def files(root: Path) -> list[Path]:
    """Everything that is checked."""
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in (".py", ".md")]
    return sorted([*found, *root.glob("*.md"), *root.glob("*.py")])


def main(root: Path = ROOT) -> int:
    """Print what is found; 1 if there is anything."""
    lines = [line for path in files(root) for line in check(path, root)]
    missing = [
        f"{name}:1: there is no such file; remove the exception." for name in ALLOWED if not (root / name).is_file()
    ]
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, *missing]))
    return 1 if lines or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
