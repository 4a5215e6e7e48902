"""Code blocks of Markdown pages, run as a reader would run them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# As a user would run them, without what conftest.py sets for the other tests.
SET_FOR_TESTS = ("NPROC", "XLA_FLAGS", "OPENBLAS_NUM_THREADS")
# What we show to others must have converged: by the words of the warnings, whose class is not there yet when Python
# reads this variable.
NOT_CONVERGED = {"PYTHONWARNINGS": "error:the chains have not converged,error:the function stays"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in SET_FOR_TESTS} | NOT_CONVERGED
QUICKLY = ENVIRONMENT | {name: os.environ[name] for name in SET_FOR_TESTS if name in os.environ}
"""Compiled as the other tests are."""
WIDEBNN = str(Path(sys.executable).with_name("widebnn"))
MARK = "=== end of block ==="


class Block(NamedTuple):
    """A fenced block: its language and its lines."""

    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """All blocks with a language, in order."""
    return [Block(*found) for found in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), flags=re.DOTALL)]


def commands_in(blocks: list[Block]) -> list[list[str]]:
    """The command lines of the console blocks, split into words."""
    lines = [line for language, text in blocks if language == "console" for line in text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def process(*arguments, **options) -> subprocess.CompletedProcess:
    """``widebnn`` with these arguments, which may fail."""
    command = [WIDEBNN, *map(str, arguments)]
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 300, "check": False} | options
    return subprocess.run(command, **options)


def run(command: list[str], folder: Path, environment: dict[str, str] = ENVIRONMENT) -> str:
    """What a program writes to stdout; an error if it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_page(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """All Python and console blocks of a page in order, in one session and one folder: each with what it printed."""
    blocks = [block for block in blocks_of(page) if block.language in ("python", "console")]
    session = ["import subprocess"]
    for block in blocks:
        if block.language == "python":
            session.append(block.text)
        for program, *arguments in commands_in([block]):
            assert program == "widebnn", f"{page.name}: {program}"
            session.append(f"print(subprocess.check_output({[WIDEBNN, *arguments]!r}, text=True))")
        session.append(f"print({MARK!r})")
    outputs = run([sys.executable, "-c", "\n".join(session)], folder, QUICKLY).split(MARK + "\n")
    return list(zip(blocks, outputs[:-1], strict=True))
