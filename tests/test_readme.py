"""Every command and example in the README works as written."""

import sys

import pytest

from pages import ROOT, WIDEBNN, blocks_of, commands_in, run

BLOCKS = blocks_of(ROOT / "README.md")
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
COMMANDS = commands_in(BLOCKS)


def test_the_readme_has_examples():
    assert EXAMPLES and COMMANDS


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example(example, tmp_path):
    run([sys.executable, "-c", example], tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command(command, tmp_path):
    program, *arguments = command
    if program == "make":
        # make demo is a step of .ci/run, and make test is what runs this test.
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
        return
    assert program == ".venv/bin/widebnn"
    if arguments[0] in ("reproduce", "fit", "predict", "evaluate", "resume"):
        return  # run by tests/reproduction/test_grid.py, test_commands.py and test_resume.py, which look at the results
    run([WIDEBNN, *arguments], tmp_path)
