"""What the reliability tests share: figures for the page, and compiled programs that are kept."""

import json
import os

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from trial import FULL

from widebnn.compilation import keep_compiled_in


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
def compiled(tmp_path_factory):
    """Programs that recur are compiled once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    keep_compiled_in(str(tmp_path_factory.mktemp("widebnn-compiled")))
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
