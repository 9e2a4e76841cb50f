"""Tables of the results: means beside the published numbers, rankings of the methods, as CSV and Markdown.

Above the reproduction, whose lines of results they are made from.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from cehm_dask.data.files import write_whole
from cehm_dask.paper.compare import dunn
from cehm_dask.paper.reproduce import known_methods
from cehm_dask.paper.sets import PAPER_SETS, POOL, SCALES
from cehm_dask.results.export import no_formula

PUBLISHED_AS = {"energy-y1": "energy", "breast_cancer": "breast-cancer-wisc-diag"}
"""Sets that the paper's table names otherwise; it does not say which of the two targets its "energy" has."""
SCORES = ("nmi", "ari")


def published() -> pd.DataFrame:
    """The paper's two result tables: score, dataset, method, value (missing: out of memory)."""
    return pd.read_csv(Path(__file__).with_name("published.csv"))


def table(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means over the ensembles: one row per set in the paper's order, one column per method and scaling.

    ``better`` is plain CEHM with the scaling that serves the set better, as the paper does not say which it used.
    """
    means = lines.pivot_table(index="set", columns=["method", "scale"], values=score, aggfunc="mean", sort=False)
    paper = published()
    known = paper[(paper["score"] == score.upper()) & (paper["method"] == "CEHM")].set_index("dataset")["value"]
    found = pd.DataFrame(index=by_paper(means.index))
    found["published"] = [known.get(PUBLISHED_AS.get(name, name), np.nan) for name in found.index]
    for method in known_methods():
        if method in means:
            for scale in SCALES:
                if scale in means[method]:
                    found[f"{method} {scale}"] = means[method][scale]
    if "plain" in means:
        found["better"] = found.filter(regex="^plain ").max(axis=1)
        found["difference"] = found["better"] - found["published"]
    return found


def pool_table(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means over the draws: one row per pool, one column per method."""
    means = lines.pivot_table(index="set", columns="method", values=score, aggfunc="mean")
    return means[[method for method in known_methods() if method in means]]


def ranking(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Methods from the best mean rank on, over the sets and scalings that all of them have done, 1 the best.

    Ranks are those of the means over ensembles that all methods have done, so that all saw the same. Columns: the mean
    score, the mean rank, and p of Dunn's test (Holm's correction) on the ranks against CEHM's default, or against the
    best method where that was not run.
    """
    wide = lines.pivot_table(index=["set", "scale", "ensemble"], columns="method", values=score).dropna()
    means = wide.groupby(level=["set", "scale"]).mean()
    ranks = means.rank(axis=1, ascending=False)
    found = pd.DataFrame({"mean": means.mean(), "rank": ranks.mean()}).sort_values("rank")
    if len(found) > 1 and len(means) > 1:
        against = "default" if "default" in found.index else found.index[0]
        found["p"] = dunn(_as_lines(ranks), "rank")[against].drop(against)
    return found


def _as_lines(ranks: pd.DataFrame) -> pd.DataFrame:
    """Ranks in the form that tests of a comparison take."""
    return ranks.melt(value_name="rank").assign(note=None)


def by_paper(names: Iterable[str]) -> list[str]:
    """Names of sets in the order of the paper's tables, others behind them."""
    return sorted(names, key=lambda name: (PAPER_SETS.index(name) if name in PAPER_SETS else len(PAPER_SETS), name))


def markdown(found: pd.DataFrame, score: str) -> str:
    """A table for people, with the means over all sets last."""
    rows = [f"| set | {' | '.join(found.columns)} |", "|---" * (len(found.columns) + 1) + "|"]
    # A mean over sets that lack one of the columns would not compare.
    for name, values in [*found.iterrows(), (f"mean {score.upper()}", found.mean(skipna=False))]:
        cells = [
            "–" if np.isnan(value) else f"{value:+.4f}" if column == "difference" else f"{value:.4f}"
            for column, value in zip(found.columns, values, strict=True)
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def ranking_markdown(found: pd.DataFrame, score: str) -> str:
    """A ranking for people."""
    rows = [f"| method | mean {score.upper()} | mean rank | p |", "|---|---|---|---|"]
    for name, line in found.iterrows():
        p = line.get("p", np.nan)
        rows.append(f"| {name} | {line['mean']:.4f} | {line['rank']:.2f} | {'–' if np.isnan(p) else f'{p:.2g}'} |")
    return "\n".join(rows) + "\n"


def write_tables(lines: pd.DataFrame, folder: Path) -> list[str]:
    """Write tables and rankings of the methods as CSV and Markdown, those of pools apart; the tables' texts."""
    texts = []
    pooled = lines["scale"] == POOL
    for own, ending, table_of in ((lines[~pooled], "", table), (lines[pooled], "_pools", pool_table)):
        for score in SCORES if len(own) else ():
            found, ranks = table_of(own, score), ranking(own, score)
            texts.append(markdown(found, score))
            contents = {
                f"table_{score}{ending}.csv": found.rename(index=no_formula).to_csv(index_label="set"),
                f"table_{score}{ending}.md": texts[-1],
                f"ranks_{score}{ending}.csv": ranks.to_csv(index_label="method"),
                f"ranks_{score}{ending}.md": ranking_markdown(ranks, score),
            }
            for name, content in contents.items():
                write_whole(str(folder / name), content.encode())
    return texts
