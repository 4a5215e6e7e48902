"""Every command and example in the README and the guides works as written."""

import sys

import pytest

from pages import QUICKLY, ROOT, WIDEBNN, blocks_of, commands_in, run

README, GUIDES = [ROOT / "README.md"], sorted((ROOT / "docs" / "guides").glob("*.md"))


def blocks(found):
    """What ``found(blocks)`` finds: in the README, and, as long tests, in the guides."""
    readme, guides = (found([block for page in pages for block in blocks_of(page)]) for pages in (README, GUIDES))
    return [*readme, *(pytest.param(one, marks=pytest.mark.long) for one in guides)]


EXAMPLES = blocks(lambda found: [text for language, text in found if language == "python"])
COMMANDS = blocks(commands_in)


def test_the_readme_has_examples():
    assert EXAMPLES and COMMANDS


def test_chains_that_have_not_converged_fail_an_example(tmp_path):
    example = """
from widebnn.estimators.convergence import warn_if_not_converged
found = {"rhat": 1.1, "ess": 100.0, "steps": 10, "misfit": None, "wanted": 100, "total_seconds": 1.0}
found |= {"slowest": "log-likelihood", "mean_error": 0.1}
warn_if_not_converged(found, "max_steps (now 10)", 8)
"""
    with pytest.raises(AssertionError, match="the chains have not converged: R-hat is"):
        run([sys.executable, "-c", example], tmp_path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example(example, tmp_path):
    run([sys.executable, "-c", example], tmp_path, QUICKLY)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command(command, tmp_path):
    program, *arguments = command
    if program == "make":
        # make demo is a step of .ci/run, and make test is what runs this test.
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
        return
    assert program in ("widebnn", ".venv/bin/widebnn")
    if arguments[0] in ("reproduce", "fit", "predict", "evaluate", "resume"):
        return  # run by tests/reproduction/test_grid.py, test_commands.py and tests/runs, which look at the results
    run([WIDEBNN, *arguments], tmp_path, QUICKLY)
