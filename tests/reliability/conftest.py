"""What the reliability tests share: figures for the page, and compiled programs that are kept."""

import json
import os

import pytest
from trial import FULL

from widebnn.compilation import compiled_once


@pytest.fixture
def record(request):
    """Note a figure, in the file that WIDEBNN_RELIABILITY names if it does, and assert that it holds."""

    def note(what, figure, goal, holds):
        line = {"part": request.path.stem.removeprefix("test_"), "what": what, "figure": str(figure), "goal": str(goal)}
        line |= {"holds": bool(holds), "full": FULL}
        if path := os.environ.get("WIDEBNN_RELIABILITY"):
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")
        assert holds, f"{what}: {figure}, but the goal is {goal}"

    return note


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Programs that recur are compiled once."""
    with compiled_once():
        yield
