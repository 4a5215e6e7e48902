"""The paper's claims, judged by the cells of a run."""

from __future__ import annotations

import itertools

from widebnn.reproduction.analysis import STATISTICS, Row, best_ess, find, is_main
from widebnn.reproduction.cells import LABELS


def claims(rows: list[Row], rhat_rows: list[Row]) -> list[dict[str, str]]:
    """Judge every claim for which there are cells.

    A claim about the acceptance of pCNL is judged twice, for the right distribution and for the one that the published
    formulas sample: where the two disagree, the published result depends on that fault.
    """
    main = [row for row in rows if is_main(row)]
    sizes = sorted({row["step_size"] for row in main})
    large = [size for size in sizes if size >= 0.1] or sizes
    widest = max((row["width"] for row in main), default=0)
    judged: list[dict[str, str]] = []

    def judge(claim: str, holds: list[bool], note: str = "", faulty: list[bool] | None = None) -> None:
        if not holds:
            return
        verdict = "confirmed" if all(holds) else "not confirmed"
        if faulty and all(faulty) != all(holds):
            verdict = "depends on the pCNL fault"
            note = f"with the published potential: {'yes' if all(faulty) else 'no'}. {note}"
        note = f"{sum(holds)} of {len(holds)} comparisons. {note}".strip()
        judged.append({"claim": claim, "verdict": verdict, "note": note})

    def rises(sampler: str) -> list[bool]:
        """Whether acceptance rises from each width to the next, for each step size."""
        found = (find(main, sampler=sampler, step_size=size) for size in sizes)
        return [b["acceptance"] > a["acceptance"] - 0.01 for here in found for a, b in itertools.pairwise(here)]

    for name in ("pcn", "pcnl"):
        faulty = rises("pcnl_published") if name == "pcnl" else None
        judge(f"Acceptance of {LABELS[name]} rises with the width, without tuning.", rises(name), faulty=faulty)
    for name in ("lmc", "underdamped"):
        fell = [down for size in sizes for down in _falls(find(main, sampler=name, step_size=size))]
        judge(f"Acceptance of {LABELS[name]} falls with the width once it moves at all.", fell)
    for name in ("pcn", "pcnl"):
        found = (find(main, sampler=name, step_size=size) for size in large)
        ess = [[best_ess(row, "predictions") for row in here] for here in found]
        grows = [b >= 0.8 * a for here in ess for a, b in itertools.pairwise(here)]
        note = "Allowing 20 % for Monte Carlo error, step sizes of at least 0.1."
        judge(f"Effective sample size of {LABELS[name]} grows with the width.", grows, note)
    for name in ("lmc", "underdamped"):
        wins = [
            best_ess(pcn, statistic) > best_ess(lmc, statistic)
            for size in large
            for pcn in find(main, sampler="pcn", step_size=size, width=widest)
            for lmc in find(main, sampler=name, step_size=size, width=widest)
            for statistic in STATISTICS
        ]
        claim = f"At width {widest} pCN has more effective samples than {LABELS[name]}."
        judge(claim, wins, "Step sizes of at least 0.1, weights and predictions.")
    for name, change in (("pcn", "improves"), ("lmc", "gets worse"), ("underdamped", "gets worse")):
        ends = [row["mean"][-1] for row in find(rhat_rows, sampler=name)]
        better = [(ends[-1] < ends[0]) == (change == "improves")] if len(ends) > 1 else []
        judge(f"R-hat of {LABELS[name]} {change} with the width.", better)
    return judged


def _falls(rows: list[Row]) -> list[bool]:
    """Whether acceptance falls from each width to the next after its largest value, if it ever exceeds 0.05."""
    rates = [row["acceptance"] for row in rows]
    if len(rates) < 2 or max(rates) <= 0.05:
        return []
    return [b < a + 0.01 for a, b in itertools.pairwise(rates[rates.index(max(rates)) :])]
