"""The lint rule finds what it forbids, and nothing of it is in the repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import unsafe

PLANTED = [
    "import pickle",
    "import pickle as harmless",
    "from pickle import loads",
    "import os, cPickle",
    "import _pickle",
    "import dill",
    "from cloudpickle import load",
    "import joblib",
    "from joblib.numpy_pickle import load",
    "import shelve",
    "import marshal",
    "def late():\n    import pickle",
    "import importlib\nimportlib.import_module('pickle')",
    "__import__('pickle')",
    "import numpy as np\nnp.load('x.npy', allow_pickle=True)",
    "import numpy as np\nnp.load('x.npy', allow_pickle=trusted)",
    "import numpy as np\nnp.load('x.npy', **{'allow_pickle': True})",
    "import functools, numpy\nread = functools.partial(numpy.load, allow_pickle=1)",
    "import yaml\nyaml.load(text)",
    "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
    "import yaml\nyaml.unsafe_load(text)",
    "from yaml import load",
    "import torch\ntorch.load('x.pt')",
    "import pandas as pd\npd.read_pickle('x')",
    "eval('1')",
    "run = eval",
    "exec('x = 1')",
    "import builtins\nbuiltins.exec('x = 1')",
    "import tarfile\ntarfile.open('x').extractall()",
    "import tarfile\ntarfile.open('x').extract('y')",
    "import zipfile\nzipfile.ZipFile('x').extractall('y')",
    "import shutil\nshutil.unpack_archive('x')",
]
HARMLESS = [
    "import json\njson.loads('1')",
    "import numpy as np\nnp.load('x.npy', allow_pickle=False)",
    "import yaml\nyaml.safe_load(text)",
    "import pickletools",
    "import re\nre.compile('x')",
    "model.eval()",
    "text = 'pickle.loads(eval(x))'  # pickle",
    "import pandas\nframe.x.str.extract('(a)')",
    "import tarfile\ntarfile.open('x').extractfile('y')",
]


@pytest.mark.parametrize("program", PLANTED)
def test_what_is_forbidden_is_found(tmp_path, program):
    path = tmp_path / "src" / "planted.py"
    path.parent.mkdir()
    path.write_text(f"'''Text.'''\n{program}\n")
    found = unsafe.check(path, tmp_path)
    last = 1 + len(program.splitlines())
    assert [line.split(": ")[0] for line in found] == [f"src/planted.py:{last}"], found
    assert found[0].endswith(".") and len(found[0].split()) > 5


@pytest.mark.parametrize("program", HARMLESS)
def test_what_is_harmless_is_not(tmp_path, program):
    (tmp_path / "fine.py").write_text(program)
    assert unsafe.check(tmp_path / "fine.py", tmp_path) == []


def test_examples_of_the_documentation_are_checked(tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("# Page\n\n```console\nimport pickle\n```\n\n```python\nx = 1\nimport pickle\n```\n")
    assert [line.split(": ")[0] for line in unsafe.check(page, tmp_path)] == ["docs/page.md:9"]


def test_the_command_prints_every_use(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(unsafe, "ALLOWED", {})
    for folder in ("src", "tests", "examples"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("import pickle\neval('1')\n")
    assert unsafe.main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[0].startswith("examples/a.py:1: pickle runs code")
    for folder in ("src", "tests", "examples"):
        (tmp_path / folder / "a.py").write_text("x = 1\n")
    assert unsafe.main(tmp_path) == 0 and capsys.readouterr().out == ""


def test_exceptions_are_for_one_file_and_one_thing_and_only_as_long_as_they_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(unsafe, "ALLOWED", {"a.py": (frozenset({"pickle"}), "a reason")})
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import pickle\neval('1')\n")
    assert [line.split(":")[1] for line in unsafe.check(tmp_path / "a.py", tmp_path)] == ["2"]
    assert [line.split(":")[1] for line in unsafe.check(tmp_path / "b.py", tmp_path)] == ["1", "2"]
    (tmp_path / "a.py").write_text("x = 1\n")
    assert "remove the exception" in unsafe.check(tmp_path / "a.py", tmp_path)[0]


def test_the_repository_has_none_of_it(capsys):
    assert unsafe.main() == 0, capsys.readouterr().out
    assert {path.relative_to(ROOT).parts[0] for path in unsafe.files(ROOT)} >= {"src", "tests", "README.md"}
    assert all(len(reason.split()) > 5 for _, reason in unsafe.ALLOWED.values())
