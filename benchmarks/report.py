"""Write docs/benchmarks.md from the measurements of steps.py, mixing.py and growth.py.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from common import PRODUCTS, RECIPE, ROOT, digits
from growth import BASE, TIMES
from mixing import AUTO, STATISTICS

RESULTS = ROOT / "benchmarks" / "results"
NAMES = ("steps", "mixing", "growth")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table, first column left, the others right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def spread(value: float, range_of: dict[str, Any]) -> str:
    """A number and its range over repeats."""
    return f"{digits(value)} ({digits(range_of['min'])}-{digits(range_of['max'])})"


def where(report: dict[str, Any]) -> str:
    """The command, the machine and the versions."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    machine_class = f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB"
    return f"`{report['command']}` on {machine_class}; {packages}. Data: {report['problem']['data']}."


def steps_section(report: dict[str, Any]) -> str:
    """Time per step."""
    widths = sorted({row["width"] for row in report["results"]})
    names = list(dict.fromkeys(row["contender"] for row in report["results"]))
    cells = {(row["contender"], row["width"]): row for row in report["results"]}

    def cell(name, width):
        row = cells.get((name, width))
        if row is None:
            return ""
        return f"{digits(row['ms_per_step'])} ({digits(row['ms_min'])}-{digits(row['ms_max'])})"

    times = table(
        ["sampler, coordinates", *map(str, widths)], [[name, *(cell(name, w) for w in widths)] for name in names]
    )
    kinds = list(dict.fromkeys((r["slower"], r["faster"]) for r in report["ratios"]))
    found = {(r["slower"], r["faster"], r["width"]): r for r in report["ratios"]}
    ratio_rows = [
        [f"{slower} / {faster}"] + [spread(r["ratio"], r) for r in (found[slower, faster, w] for w in widths)]
        for slower, faster in kinds
    ]
    notes = "\n".join(f"- {note}" for note in report["notes"])
    setting = f"one hidden layer, n = {report['problem']['n']}: median over {report['repeats']} rounds"
    return f"""## Time per step

{where(report)}
Milliseconds per step against width, {setting} (fastest to slowest), all measured in turn in one run.

{times}

Ratios, within the same run (range over the rounds):

{table(["ratio", *map(str, widths)], ratio_rows)}

{notes}

![Time per step against width](images/steps.png)
"""


def mixing_section(report: dict[str, Any]) -> str:
    """Effective samples per step, gradient and second."""
    header = ["sampler", "ms per step", "acceptance", "gradients per step"]
    for name in STATISTICS:
        header += [f"ESS/s, {name}"]
    header += ["ESS per 1000 steps, slowest", "gradients per ESS, log-likelihood", "gradients per ESS, slowest"]
    tables = []
    for width in sorted({row["width"] for row in report["results"]}):
        rows = [row for row in report["results"] if row["width"] == width]
        rows.sort(key=lambda row: -row["ess_per_second"]["slowest projection"]["value"])
        tables.append(f"Width {width}:\n\n" + table(header, [mixing_row(row) for row in rows]))
    kinds = [(name, against) for name in STATISTICS for against in (RECIPE, "best of BlackJAX")]
    widths = sorted({row["width"] for row in report["results"]})

    def ratio(name, against, width):
        return digits(find_ratio(report, name, against, width))

    ratios = [
        [f"auto / {against}, {name}", *(ratio(name, against, width) for width in widths)] for name, against in kinds
    ]
    return (
        f"""## Mixing

{where(report)}
Effective samples (ArviZ, rank-normalised bulk) of the log-likelihood, of the predictive mean at 16 test inputs (mean
over 100 random combinations) and of the slowest of 100 random projections of the coordinates. Every sampler starts at
a draw of the posterior, finds its step size in a burn-in that is not counted, and gets
{report["problem"]["seconds"]:.0f} s in three segments; in brackets the range over segments, which lies above the value
where a chain decorrelates more slowly than a segment is long. BlackJAX's samplers run on the same function-space
target in the same compiled loop; their step sizes come from the same dual averaging, to .574 (MALA), .65 (HMC, a
quarter turn like ours) and .8 (NUTS). The published chain has the law of our pCN with the same step size (a test shows
it), and its own time per step. The slowest of 100 is the minimum of 100 noisy estimates: it is too low for samplers
that mix well and too high for those that hardly move, so the ratios of the slowest are cautious.

Ratios of effective samples per second, within the same run:

{table(["ratio", *map(str, widths)], ratios)}

![Effective samples per second against width](images/mixing.png)

"""
        + "\n\n".join(tables)
        + "\n"
    )


def mixing_row(row: dict[str, Any]) -> list[str]:
    """One sampler at one width."""
    rates = row["ess_per_second"]
    per = row["ess_per_gradient"]
    cells = [row["sampler"], f"{digits(row['ms_per_step'])} ({digits(row['ms_min'])}-{digits(row['ms_max'])})"]
    cells += [f"{row['acceptance_rate']:.2f}", digits(row["gradients_per_step"]) if per else ""]
    cells += [spread(rates[name]["value"], rates[name]) for name in STATISTICS]
    cells += [digits(1000 * row["ess_per_step"]["slowest projection"])]
    return cells + [digits(1 / per[name]) if per else "" for name in ("log-likelihood", "slowest projection")]


def find_ratio(report: dict[str, Any], statistic: str, against: str, width: int) -> float:
    """The default sampler against another."""
    (found,) = (
        row["ratio"]
        for row in report["ratios"]
        if (row["statistic"], row["width"]) == (statistic, width) and row["against"].startswith(against)
    )
    return found


def growth_section(report: dict[str, Any]) -> str:
    """Time and memory against every size."""
    rows = [
        [*(str(row[name]) for name in BASE), *(digits(row["ms"][name]) for name in TIMES), digits(memory_of(row))]
        for row in report["results"]
    ]
    fits = [[row["varies"], *(f"{row[name]:.2f}" for name in (*TIMES, "memory"))] for row in report["exponents"]]
    few, many = report["many_steps"]
    return f"""## Growth of cost

{where(report)}
One size varies at a time. Milliseconds of a pCN step, of a gradient step (Hilbert-space HMC with one gradient) and of a
draw of predictions at the test inputs; megabytes of peak resident memory of a short `widebnn.sample` in a process of
its own, above those of the imported package ({report["results"][0]["baseline_mb"]:.0f} MB).

{table([*BASE, *(f"{name} (ms)" for name in TIMES), "memory (MB)"], rows)}

Exponents fitted to the three largest sizes:

{table(["size", *TIMES, "memory"], fits)}

A small run with 1000 stored draws peaks at {few["peak_mb"]:.0f} MB after {few["steps"]:,} steps and at
{many["peak_mb"]:.0f} MB after {many["steps"]:,} (with one malloc arena: glibc gives each thread its own, which fill in
the first half minute of any program).

![Time and memory against size](images/growth.png)
"""


def memory_of(row: dict[str, Any]) -> float:
    """Megabytes above the imported package."""
    return row["peak_mb"] - row["baseline_mb"]


def goals_section(steps: dict[str, Any], mixing: dict[str, Any], growth: dict[str, Any]) -> str:
    """What was aimed at and what was measured, by the numbers below."""
    rows = []

    def add(what, goal, value, met):
        rows.append([what, goal, value, "yes" if met else "no"])

    step_ratios = {(r["slower"], r["faster"], r["width"]): r for r in steps["ratios"]}
    for faster, width, goal in (
        ("pcn, marginal", 1024, 4),
        ("pcn, marginal", 4096, 8),
        ("pcn, function", 512, 40),
        ("pcn, function", 2048, 80),
        ("pcn, function", 8192, 400),
    ):
        ratio = step_ratios[RECIPE, faster, width]
        what = f"time per step, published recipe / {faster}, width {width}"
        add(what, f"at least {goal}", spread(ratio["ratio"], ratio), ratio["ratio"] >= goal)
    ratio = step_ratios["pcn, function", PRODUCTS, 8192]
    what = "time per step, pcn, function / its dense matrix products, width 8192"
    add(what, "below 2", spread(ratio["ratio"], ratio), ratio["ratio"] < 2)
    slowest = STATISTICS[-1]
    for against, width, goal in ((RECIPE, 1024, 1000), ("best of BlackJAX", 1024, 3), ("best of BlackJAX", 4096, 5)):
        value = find_ratio(mixing, slowest, against, width)
        what = f"ESS per second ({slowest}), auto / {against}, width {width}"
        add(what, f"at least {goal}", digits(value), value >= goal)
    for width, goal in ((1024, 10), (4096, 6), (8192, 4)):
        (row,) = (row for row in mixing["results"] if (row["sampler"], row["width"]) == (AUTO, width))
        value = 1 / row["ess_per_gradient"]["log-likelihood"]
        what = f"gradients per effective sample (log-likelihood), auto, width {width}"
        add(what, f"at most {goal}", digits(value), value <= goal)
    widest = next(row for row in growth["results"] if row["width"] == 8192)
    add("peak memory of a run at width 8192", "2048 MB", f"{widest['peak_mb']:.0f} MB", widest["peak_mb"] < 2048)
    few, many = growth["many_steps"]
    more = many["peak_mb"] / few["peak_mb"]
    what = "peak memory, a million steps / a thousand (repeated runs differ by 2 %)"
    add(what, "1", f"{more:.3f}", more < 1.03)
    return "## Goals\n\n" + table(["what", "goal", "measured", "met"], rows) + "\n"


def page() -> str:
    """The page, from what was measured."""
    steps, mixing, growth = (json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES)
    sections = [
        (ROOT / "benchmarks" / "intro.md").read_text(),
        goals_section(steps, mixing, growth),
        steps_section(steps),
        mixing_section(mixing),
        growth_section(growth),
    ]
    return "\n".join(sections)


def main() -> None:
    """Write the page and copy its figures."""
    (ROOT / "docs" / "images").mkdir(exist_ok=True)
    for name in NAMES:
        shutil.copy(RESULTS / f"{name}.png", ROOT / "docs" / "images" / f"{name}.png")
    (ROOT / "docs" / "benchmarks.md").write_text(page())
    print("Wrote docs/benchmarks.md.")


if __name__ == "__main__":
    main()
