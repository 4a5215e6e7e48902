"""The site builds without a warning, offline, and its reference has all public names."""

import re
import subprocess
import sys

import pytest

import widebnn
from pages import ROOT

pytest.importorskip("mkdocs", reason="the site needs requirements-dev.txt")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}


def test_the_reference_has_all_public_names(site):
    reference = "".join(text for name, text in site.items() if name.startswith("api/"))
    for name in set(widebnn.__all__) - {"samplers"}:
        assert re.search(rf'id="widebnn\.[\w.]*\b{name}"', reference), name


def test_pages_need_nothing_from_elsewhere(site):
    for name, text in site.items():
        assert not re.search(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css|png|svg|woff2?)"', text), name


def test_examples_have_pages(site):
    assert {f"examples/{path.stem}.html" for path in (ROOT / "examples").glob("*.py")} <= site.keys()
