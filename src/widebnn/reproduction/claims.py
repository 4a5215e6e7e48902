"""The paper's claims, judged by the cells of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from widebnn.reproduction.analysis import STATISTICS, main_cells
from widebnn.reproduction.cells import LABELS


def claims(cells: pd.DataFrame) -> list[dict[str, str]]:
    """Judge every claim for which there are cells, see ``cell_table``.

    A claim about the acceptance of pCNL is judged twice, for the right distribution and for the one that the published
    formulas sample: where the two disagree, the published result depends on that fault.
    """
    main = main_cells(cells)
    large = main[main["step_size"] >= min(0.1, main["step_size"].max())]
    judged: list[dict[str, str]] = []

    def judge(claim: str, comparisons: Iterable[Any], note: str = "", faulty: Any = ()) -> None:
        holds = list(comparisons)
        if not holds:
            return
        verdict = "confirmed" if all(holds) else "not confirmed"
        if len(faulty) and all(faulty) != all(holds):
            verdict = "depends on the pCNL fault"
            note = f"with the published potential: {'yes' if all(faulty) else 'no'}. {note}"
        note = f"{sum(holds)} of {len(holds)} comparisons. {note}".strip()
        judged.append({"claim": claim, "verdict": verdict, "note": note})

    def by_width(here: pd.DataFrame, sampler: str, column: str) -> pd.DataFrame:
        """Numbers of a sampler and, as ``before``, those of the next smaller width with the same step size."""
        here = here[here["sampler"] == sampler]
        known = pd.DataFrame({"now": here[column], "before": here.groupby("step_size")[column].shift()})
        return known.dropna(subset="before")

    def rises(sampler: str) -> pd.Series:
        return by_width(main, sampler, "acceptance").eval("now > before - 0.01")

    for name in ("pcn", "pcnl"):
        faulty = rises("pcnl_published") if name == "pcnl" else ()
        judge(f"Acceptance of {LABELS[name]} rises with the width, without tuning.", rises(name), faulty=faulty)
    for name in ("lmc", "underdamped"):
        groups = main[main["sampler"] == name].groupby("step_size")["acceptance"]
        fell = [down for _, rates in groups for down in _falls(rates)]
        judge(f"Acceptance of {LABELS[name]} falls with the width once it moves at all.", fell)
    for name in ("pcn", "pcnl"):
        grows = by_width(large, name, "predictions.best").eval("now >= 0.8 * before")
        note = "Allowing 20 % for Monte Carlo error, step sizes of at least 0.1."
        judge(f"Effective sample size of {LABELS[name]} grows with the width.", grows, note)
    widest = large[large["width"] == large["width"].max()]
    pcn = widest[widest["sampler"] == "pcn"]
    for name in ("lmc", "underdamped"):
        pairs = pcn.merge(widest[widest["sampler"] == name], on="step_size", suffixes=("", "_other"))
        wins = [win for one in STATISTICS for win in pairs[f"{one}.best"] > pairs[f"{one}.best_other"]]
        claim = f"At width {widest['width'].max()} pCN has more effective samples than {LABELS[name]}."
        judge(claim, wins, "Step sizes of at least 0.1, weights and predictions.")
    for name, change in (("pcn", "improves"), ("lmc", "gets worse"), ("underdamped", "gets worse")):
        chains = cells[(cells["chains"] > 1) & (cells["sampler"] == name)]
        if len(chains) > 1:
            ends = chains["rhat.mean"].str[-1]
            better = (ends.iloc[-1] < ends.iloc[0]) == (change == "improves")
            judge(f"R-hat of {LABELS[name]} {change} with the width.", [better])
    return judged


def _falls(rates: pd.Series) -> list[bool]:
    """Whether acceptance falls from each width to the next after its largest value, if it ever exceeds 0.05."""
    return list(rates.diff().loc[rates.idxmax() :].iloc[1:] < 0.01) if rates.max() > 0.05 else []
