"""The paper's claims, judged by the cells of a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from widebnn.reproduction.analysis import STATISTICS, best_ess, find, is_main
from widebnn.reproduction.cells import LABELS

Row = dict[str, Any]
MONTE_CARLO = "Allowing 20 % for Monte Carlo error, step sizes of at least 0.1."


def claims(rows: list[Row], rhat_rows: list[Row]) -> list[dict[str, str]]:
    """Judge every claim for which there are cells.

    A claim about the acceptance of pCNL is judged twice, for the right distribution and for the one that the published
    formulas sample: where the two disagree, the published result depends on that fault.
    """
    main = [row for row in rows if is_main(row)]
    sizes = sorted({row["step_size"] for row in main})
    large = [size for size in sizes if size >= 0.1] or sizes
    judged = []
    for name in ("pcn", "pcnl"):
        claim = f"Acceptance of {LABELS[name]} rises with the width, without tuning."
        faulty = _along_width(main, "pcnl_published", sizes, _rises) if name == "pcnl" else []
        judged.append(_judge(claim, _along_width(main, name, sizes, _rises), faulty=faulty))
    for name in ("lmc", "underdamped"):
        claim = f"Acceptance of {LABELS[name]} falls with the width once it moves at all."
        judged.append(_judge(claim, [fell for size in sizes for fell in _falls(main, name, size)]))
    for name in ("pcn", "pcnl"):
        claim = f"Effective sample size of {LABELS[name]} grows with the width."
        judged.append(_judge(claim, _along_width(main, name, large, _grows), MONTE_CARLO))
    widest = max((row["width"] for row in main), default=0)
    for name in ("lmc", "underdamped"):
        claim = f"At width {widest} pCN has more effective samples than {LABELS[name]}."
        wins = [
            best_ess(pcn, statistic) > best_ess(lmc, statistic)
            for size in large
            for pcn in find(main, sampler="pcn", step_size=size, width=widest)
            for lmc in find(main, sampler=name, step_size=size, width=widest)
            for statistic in STATISTICS
        ]
        judged.append(_judge(claim, wins, "Step sizes of at least 0.1, weights and predictions."))
    for name, improves in (("pcn", True), ("lmc", False), ("underdamped", False)):
        ends = [row["mean"][-1] for row in find(rhat_rows, sampler=name)]
        claim = f"R-hat of {LABELS[name]} {'improves' if improves else 'gets worse'} with the width."
        judged.append(_judge(claim, [(ends[-1] < ends[0]) == improves] if len(ends) > 1 else []))
    return [claim for claim in judged if claim is not None]


def _judge(claim: str, holds: list[bool], note: str = "", faulty: Iterable[bool] = ()) -> dict[str, str] | None:
    if not holds:
        return None
    verdict, faulty = "confirmed" if all(holds) else "not confirmed", list(faulty)
    if faulty and all(faulty) != all(holds):
        verdict = "depends on the pCNL fault"
        note = f"with the published potential: {'yes' if all(faulty) else 'no'}. {note}"
    count = f"{sum(holds)} of {len(holds)} comparisons"
    return {"claim": claim, "verdict": verdict, "note": f"{count}. {note}".strip()}


def _along_width(rows: list[Row], sampler: str, sizes: list[float], holds: Callable[[Row, Row], bool]) -> list[bool]:
    """Whether it holds from each width to the next, for each step size."""
    found = (find(rows, sampler=sampler, step_size=size) for size in sizes)
    return [holds(a, b) for here in found for a, b in itertools.pairwise(here)]


def _rises(a: Row, b: Row) -> bool:
    return b["acceptance"] > a["acceptance"] - 0.01


def _grows(a: Row, b: Row) -> bool:
    return best_ess(b, "predictions") >= 0.8 * best_ess(a, "predictions")


def _falls(rows: list[Row], sampler: str, size: float) -> list[bool]:
    """Whether acceptance falls from each width to the next after its largest value, if it ever exceeds 0.05."""
    rates = [row["acceptance"] for row in find(rows, sampler=sampler, step_size=size)]
    if len(rates) < 2 or max(rates) <= 0.05:
        return []
    return [b < a + 0.01 for a, b in itertools.pairwise(rates[rates.index(max(rates)) :])]
