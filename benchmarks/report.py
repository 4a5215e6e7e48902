"""Write docs/benchmarks.md from its template and the measurements of steps.py, mixing.py and growth.py.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from common import AUTO, BASE, PRODUCTS, RECIPE, RESULTS, ROOT, STATISTICS, TIMES, digits, fill
from widebnn.reproduction.report import table

NAMES = ("steps", "mixing", "growth")
SLOWEST = STATISTICS[-1]
Report = dict[str, Any]


def spread(row: dict[str, Any], *names: str) -> str:
    """A number and its range over repeats; without names, a ratio."""
    value, low, high = (digits(row[name]) for name in names or ("ratio", "min", "max"))
    return f"{value} ({low}-{high})"


def milliseconds(row: dict[str, Any]) -> str:
    """Time per step and its range."""
    return spread(row, "ms_per_step", "ms_min", "ms_max")


def where(report: Report) -> str:
    """The command, the machine and the versions."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    machine_class = f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB"
    return f"`{report['command']}` on {machine_class}; {packages}. Data: {report['problem']['data']}."


def by_width(report: Report, label: str, cells: dict[tuple[str, int], str]) -> str:
    """A table of cells by name and width."""
    widths = sorted({row["width"] for row in report["results"]})
    names = dict.fromkeys(name for name, _ in cells)
    return table([label, *map(str, widths)], [[name, *(cells.get((name, w), "") for w in widths)] for name in names])


def steps_places(report: Report) -> dict[str, str]:
    """Time per step."""
    times = {(row["contender"], row["width"]): milliseconds(row) for row in report["results"]}
    ratios = {(f"{r['slower']} / {r['faster']}", r["width"]): spread(r) for r in report["ratios"]}
    return {
        "STEPS": where(report),
        "STEPS_SETTING": f"n = {report['problem']['n']}: median over {report['repeats']} rounds",
        "STEPS_TIMES": by_width(report, "sampler, coordinates", times),
        "STEPS_RATIOS": by_width(report, "ratio", ratios),
        "STEPS_NOTES": "\n".join(f"- {note}" for note in report["notes"]),
    }


def mixing_places(report: Report) -> dict[str, str]:
    """Effective samples per step, gradient and second."""
    header = ["sampler", "ms per step", "acceptance", "gradients per step", *(f"ESS/s, {name}" for name in STATISTICS)]
    header += ["ESS per 1000 steps, slowest", "gradients per ESS, log-likelihood", "gradients per ESS, slowest"]
    widths = sorted({row["width"] for row in report["results"]})
    tables = []
    for width in widths:
        rows = [row for row in report["results"] if row["width"] == width]
        rows.sort(key=lambda row: -row["ess_per_second"][SLOWEST]["value"])
        tables.append(f"Width {width}:\n\n" + table(header, [mixing_row(row) for row in rows]))
    ratios = {
        (f"auto / {against}, {name}", width): digits(find_ratio(report, name, against, width))
        for name in STATISTICS
        for against in (RECIPE, "best of BlackJAX")
        for width in widths
    }
    return {
        "MIXING": where(report),
        "MIXING_SECONDS": f"{report['problem']['seconds']:.0f}",
        "MIXING_RATIOS": by_width(report, "ratio", ratios),
        "MIXING_TABLES": "\n\n".join(tables),
    }


def mixing_row(row: dict[str, Any]) -> list[str]:
    """One sampler at one width."""
    rates, per = row["ess_per_second"], row["ess_per_gradient"]
    cells = [row["sampler"], milliseconds(row), f"{row['acceptance_rate']:.2f}"]
    cells.append(digits(row["gradients_per_step"]) if per else "")
    cells += [spread(rates[name], "value", "min", "max") for name in STATISTICS]
    cells.append(digits(1000 * row["ess_per_step"][SLOWEST]))
    return cells + [digits(1 / per[name]) if per else "" for name in ("log-likelihood", SLOWEST)]


def find_ratio(report: Report, statistic: str, against: str, width: int) -> float:
    """The default sampler against another."""
    rows = (row for row in report["ratios"] if (row["statistic"], row["width"]) == (statistic, width))
    (found,) = (row["ratio"] for row in rows if row["against"].startswith(against))
    return found


def growth_places(report: Report) -> dict[str, str]:
    """Time and memory against every size."""
    rows = [
        [*(str(row[name]) for name in BASE), *(digits(row["ms"][name]) for name in TIMES), digits(memory_of(row))]
        for row in report["results"]
    ]
    fits = [[row["varies"], *(f"{row[name]:.2f}" for name in (*TIMES, "memory"))] for row in report["exponents"]]
    peaks = [f"{row['peak_mb']:.0f} MB after {row['steps']:,} steps" for row in report["many_steps"]]
    return {
        "GROWTH": where(report),
        "GROWTH_BASELINE": f"{report['results'][0]['baseline_mb']:.0f} MB",
        "GROWTH_TABLE": table([*BASE, *(f"{name} (ms)" for name in TIMES), "memory (MB)"], rows),
        "GROWTH_EXPONENTS": table(["size", *TIMES, "memory"], fits),
        "GROWTH_MANY_STEPS": " and at ".join(peaks),
    }


def memory_of(row: dict[str, Any]) -> float:
    """Megabytes above the imported package."""
    return row["peak_mb"] - row["baseline_mb"]


def goals(steps: Report, mixing: Report, growth: Report) -> str:
    """What was aimed at and what was measured, by the numbers below."""
    rows = []

    def add(what, goal, value, met):
        rows.append([what, goal, value, "yes" if met else "no"])

    step_ratios = {(r["slower"], r["faster"], r["width"]): r for r in steps["ratios"]}
    least = {("marginal", 1024): 4, ("marginal", 4096): 8}
    least |= {("function", 512): 40, ("function", 2048): 80, ("function", 8192): 400}
    for (coordinates, width), goal in least.items():
        r = step_ratios[RECIPE, f"pcn, {coordinates}", width]
        what = f"time per step, published recipe / pcn, {coordinates}, width {width}"
        add(what, f"at least {goal}", spread(r), r["ratio"] >= goal)
    r = step_ratios["pcn, function", PRODUCTS, 8192]
    what = "time per step, pcn, function / its dense matrix products, width 8192"
    add(what, "below 2", spread(r), r["ratio"] < 2)
    for against, width, goal in ((RECIPE, 1024, 1000), ("best of BlackJAX", 1024, 3), ("best of BlackJAX", 4096, 5)):
        value = find_ratio(mixing, SLOWEST, against, width)
        what = f"ESS per second ({SLOWEST}), auto / {against}, width {width}"
        add(what, f"at least {goal}", digits(value), value >= goal)
    for width, goal in ((1024, 10), (4096, 6), (8192, 4)):
        (row,) = (row for row in mixing["results"] if (row["sampler"], row["width"]) == (AUTO, width))
        value = 1 / row["ess_per_gradient"]["log-likelihood"]
        what = f"gradients per effective sample (log-likelihood), auto, width {width}"
        add(what, f"at most {goal}", digits(value), value <= goal)
    widest = next(row for row in growth["results"] if row["width"] == 8192)
    add("peak memory of a run at width 8192", "2048 MB", f"{widest['peak_mb']:.0f} MB", widest["peak_mb"] < 2048)
    more = growth["many_steps"][1]["peak_mb"] / growth["many_steps"][0]["peak_mb"]
    what = "peak memory, a million steps / a thousand (repeated runs differ by 2 %)"
    add(what, "1", f"{more:.3f}", more < 1.03)
    return table(["what", "goal", "measured", "met"], rows)


def page() -> str:
    """The page, from what was measured."""
    steps, mixing, growth = (json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES)
    places = steps_places(steps) | mixing_places(mixing) | growth_places(growth)
    return fill("benchmarks", GOALS=goals(steps, mixing, growth), **places)


if __name__ == "__main__":
    for name in NAMES:
        shutil.copy(RESULTS / f"{name}.png", ROOT / "docs" / "images")
    (ROOT / "docs" / "benchmarks.md").write_text(page())
    print("Wrote docs/benchmarks.md.")
