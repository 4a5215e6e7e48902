"""The rule that no stage imports a later one: it holds, and it is seen when it does not."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "layers.py"
spec = importlib.util.spec_from_file_location("layers", TOOL)
layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(layers)
PACKAGE = layers.ROOT / "src" / "widebnn"


def test_the_package_keeps_the_order():
    assert list(layers.violations(PACKAGE)) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("samplers/pcn.py", "from widebnn.networks import dense", "samplers must know nothing of networks"),
        ("posteriors.py", "def f():\n    import widebnn.sampling.sample", "posteriors must know nothing of sampling"),
        ("estimators/base.py", "from widebnn import reproduction", "estimators must know nothing of reproduction"),
        ("novel.py", "", "novel is in no stage"),
    ],
)
def test_violations_are_seen(tmp_path, capsys, module, text, expected):
    path = tmp_path / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert layers.main(tmp_path) == 1
    assert expected in capsys.readouterr().out
