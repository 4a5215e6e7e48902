"""Every command and example in the README works as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# As a user would run them, without what conftest.py sets for the other tests.
SET_FOR_TESTS = ("NPROC", "XLA_FLAGS", "OPENBLAS_NUM_THREADS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in SET_FOR_TESTS}
ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    shlex.split(line, comments=True)
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.strip()
]


def test_the_readme_has_examples():
    assert EXAMPLES and COMMANDS


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command(command, tmp_path):
    program, *arguments = command
    if program == "make":
        # make demo is a step of .ci/run, and make test is what runs this test.
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
        return
    assert program == ".venv/bin/widebnn"
    if arguments[0] == "reproduce":
        return  # run by tests/experiments/test_grid.py, which looks at its results
    done = subprocess.run(
        [str(Path(sys.executable).with_name("widebnn")), *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
