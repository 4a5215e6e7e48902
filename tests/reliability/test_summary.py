"""The page of reliability figures is that of its JSON, and a figure that does not hold fails."""

import json

import pytest
import summary


def test_the_page_says_what_the_results_say():
    assert summary.PAGE.read_text() == summary.build(json.loads(summary.RESULTS.read_text()))
    names = {path.stem.removeprefix("test_") for path in summary.HERE.glob("test_*.py")}
    assert names == {*summary.PARTS, "summary"}


def test_figures_are_noted_and_asserted(tmp_path, monkeypatch, record):
    monkeypatch.setenv("WIDEBNN_RELIABILITY", str(tmp_path / "figures"))
    record("kills", "3 | 4", "0", True)
    with pytest.raises(AssertionError, match="losses: 1, but the goal is 0"):
        record("losses", 1, 0, False)
    page = summary.section("kills", [json.loads(line) for line in (tmp_path / "figures").read_text().splitlines()])
    assert "| kills | 3 \\| 4 | 0 | holds |" in page and "| losses | 1 | 0 | **fails** |" in page
