"""The tutorials run from top to bottom and print what they say; all links between pages lead somewhere."""

import re

import pytest

from pages import ROOT, blocks_of, run_page

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md"), *TUTORIALS]
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def assert_same_output(printed, shown):
    """The same words, and the same numbers up to what another machine's rounding does to a chain."""
    words = [re.sub(NUMBER, "#", text).split() for text in (printed, shown)]
    assert words[0] == words[1], printed
    for found, expected in zip(re.findall(NUMBER, printed), re.findall(NUMBER, shown), strict=True):
        assert abs(float(found) - float(expected)) <= max(0.05, 0.1 * abs(float(expected))), printed


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem == "own_target" else pytest.mark.long) for page in TUTORIALS],
    ids=lambda page: page.stem,
)
def test_tutorial(page, tmp_path):
    outputs = iter(run_page(page, tmp_path))
    printed = None
    compared = 0
    for block in blocks_of(page):
        if block.language == "text":
            assert_same_output(printed, block.text)
            compared += 1
        else:
            expected, printed = next(outputs)
            assert expected == block
    assert compared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith(("http", "#")):
            assert (page.parent / link.split("#")[0]).exists(), f"{page.name}: {link}"
