"""The API reference builds without a warning and has all public names."""

import re
import sys

import widebnn
from pages import ROOT, run


def test_reference(tmp_path):
    command = re.search(r"\$\(BIN\)/python (docs/reference/build\.py) build/api\n", (ROOT / "Makefile").read_text())
    run([sys.executable, "-W", "error", str(ROOT / command[1]), str(tmp_path)], tmp_path)
    page = (tmp_path / "widebnn.html").read_text()
    for name in widebnn.__all__:
        place = f'href="widebnn/{name}.html"' if name == "samplers" else f'<section id="{name}">'
        assert place in page, name
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "widebnn/estimators.html", "widebnn/limits.html"} <= pages.keys()
    for name, text in pages.items():
        # Roles that were not understood, names from nowhere, private names.
        assert not re.search(r":(func|class|meth|mod):|jaxlib|namedtuple_|<section id=\"_", text), name
        for link in re.findall(r'href="(?!http|#)([^"#$]+)', text):
            assert ((tmp_path / name).parent / link).exists(), f"{name}: {link}"
