"""The columns of a leaderboard, and which metrics verdicts are shown for."""

from __future__ import annotations

from dataclasses import dataclass

# The metrics that verdicts are shown for. Not NLL and ECE before temperature: a method can lower them by being more
# timid, and be worse in all that counts.
JUDGED = {
    "single_label": ("accuracy", "aurc", "nll_after"),
    "multi_label": ("micro_f1", "nll_after"),
    "regression": ("mse", "mae", "pearson", "spearman"),
}

# In no table and on no page: a fifth of the time of all statistics, for those who export every metric.
EXPORTED_ONLY = ("adaptive_ece",)


@dataclass(frozen=True)
class Column:
    """A column of the leaderboard: a metric, and its name for tables."""

    metric: str
    title: str
    percent: bool = False


COLUMNS = {
    "single_label": (
        Column("accuracy", "accuracy", True), Column("aurc", "AURC"), Column("nll_after", "NLL after T"),
        Column("nll", "NLL"), Column("ece_after", "ECE after T", True), Column("ece", "ECE", True),
        Column("excess_aurc", "excess AURC"), Column("error_auroc", "error AUROC"),
    ),
    "multi_label": (
        Column("micro_f1", "micro-F1", True), Column("nll_after", "NLL after T"), Column("nll", "NLL"),
        Column("ece_after", "ECE after T", True), Column("ece", "ECE", True),
    ),
    "regression": (
        Column("mse", "MSE"), Column("mae", "MAE"), Column("pearson", "Pearson"), Column("spearman", "Spearman"),
    ),
}  # fmt: skip
SCALAR_COLUMNS = (
    Column("ood_auroc", "OOD AUROC"),
    Column("ood_false_accept", "OOD accepted", True),
    Column("seconds_per_step", "s/step"),
)
