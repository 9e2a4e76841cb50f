"""``cehm compare``: CEHM and its rivals side by side."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.status import Status

from cehm_dask.cli.explain import Terminal, explained
from cehm_dask.errors import ExistsError, InputError, NotFoundError
from cehm_dask.masking import masked
from cehm_dask.progress import Progress

PAGE = "comparison.html"
WRITTEN = ("labels/*.npy", "results.csv", "summary.csv", "dunn-*.csv", "boxes.png", PAGE)
"""The files of a comparison."""
WIDE = 160
"""Columns of a table that goes to a file or a pipe."""


@click.command()
@click.argument("source", metavar="ENSEMBLE_OR_FEATURES")
@click.option("--k", "n_clusters", type=int, help="Clusters wanted.  [default: of a pool, the number of its classes]")
@click.option(
    "--methods",
    default="",
    help="Names, with commas between, or all.  [default: CEHM and the methods that are linear in n; up to 2,000 "
    "samples all]",
)
@click.option(
    "--ensembles", type=int, help="The source holds features or a pool: draw so many ensembles of 30 members each."
)
@click.option("--pool-members", type=int, help="Members of an ensemble drawn from a pool.  [default: 30]")
@click.option("--truth", help="Known classes: .npy, .csv, .parquet or a Zarr array.  [default: those in the source]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for a page, tables, figure and labels.")
@click.option("--seed", default=0, show_default=True)
@click.option("--memory", help="Memory a method may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@explained
def compare(
    source: str,
    n_clusters: int | None,
    methods: str,
    ensembles: int | None,
    pool_members: int | None,
    truth: str | None,
    output: Path | None,
    seed: int,
    memory: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Run CEHM and other consensus methods on the same base labels: scores, time, memory.

    ENSEMBLE_OR_FEATURES is base labels (ensemble.zarr, .npy, .csv, .parquet) or, with --ensembles, features (.npy,
    .csv, .parquet, a Zarr array, or a .npz with X and y) or a pool of members that others made (a .npz with labels,
    n × members, and y), of which each ensemble has some at random. Methods run one after the other, each in a process
    of its own. With known classes they are scored by NMI, ARI and accuracy, always by their agreement with the
    members; from three ensembles on, differences are tested (Kruskal–Wallis, Dunn).

    \b
    Examples:
      cehm compare ensemble.zarr --k 10 --truth classes.npy
      cehm compare features.npz --k 3 --ensembles 30 -o comparison
      cehm compare labels.npy --k 5 --methods cehm,usenc,voting
      cehm compare pool.npz --ensembles 10 --methods cehm,usenc,lwgp
    """
    from cehm_dask.data.files import write_whole
    from cehm_dask.paper import compare as comparing
    from cehm_dask.paper import comparison
    from cehm_dask.paper.figures import figure_of
    from cehm_dask.paper.pools import N_MEMBERS
    from cehm_dask.report import is_page
    from cehm_dask.results.export import no_formula

    if output is not None:
        if output.exists() and not overwrite:
            raise ExistsError(f"output {output} exists: choose another name, or pass --overwrite")
        if output.is_file() or (output.exists() and any(output.iterdir()) and not is_page(output / PAGE)):
            raise ExistsError(f"output {output} exists and is no comparison: choose another name")
        figure_of(1, 1, 1, 1)  # what is missing is said before the work, not behind it
        if (ensembles or 1) >= comparing.FEWEST_TO_TEST:
            comparing.posthocs()
    console = Terminal(stderr=True)
    with tempfile.TemporaryDirectory() as scratch, console.status("reading") as status:
        if quiet:
            status.stop()
        pool = _pool(source)
        n_clusters = _checked(source, pool, n_clusters, ensembles, pool_members)
        own = None
        if ensembles is None:
            urls = [source]
        else:
            status.update(f"drawing {ensembles} ensembles")
            drawn = Path(scratch) / "ensembles"  # apart from the labels that methods find, which are kept
            drawn.mkdir()
            if pool is not None:
                own = pool.y
                urls = comparing.draw_from_pool(pool, pool_members or N_MEMBERS, ensembles, seed, drawn)
            else:
                features, own = _features(source)
                urls = comparing.draw_ensembles(features, n_clusters, ensembles, seed, drawn)
        first = _base_labels(urls[0], hint=ensembles is None)
        classes = _classes(truth, own, first)
        names = comparing.chosen([name.strip() for name in methods.split(",") if name.strip()], first.n_samples)
        lines = comparing.compare(
            urls,
            n_clusters,
            names,
            Path(scratch),
            seed=seed,
            memory=memory,
            truth=classes,
            progress=_Shown(status),
        )
        if lines["note"].notna().all():
            raise InputError(f"no method ran: {lines['note'].iloc[0]}")
        if output is not None:
            facts = {
                "samples": f"{first.n_samples:,}",
                "members": str(first.n_members),
                "clusters": str(n_clusters),
                "ensembles": str(len(urls)),
                "seed": str(seed),
            }
            lines["note"] = lines["note"].map(masked, na_action="ignore")
            page = comparison.render(lines, facts, masked(f"Consensus methods on {Path(source).name}"))
            # What a comparison before this one wrote, and nothing else that may lie there.
            for name in WRITTEN:
                for path in output.glob(name):
                    path.unlink()
            (output / "labels").mkdir(parents=True, exist_ok=True)
            for found in sorted(Path(scratch).glob("*.npy")):
                shutil.move(found, output / "labels" / found.name)
            lines.map(no_formula).to_csv(output / "results.csv", index=False)
            comparing.summary(lines).to_csv(output / "summary.csv")
            if comparing.testable(lines):
                for score in comparison.scored(lines):
                    comparing.dunn(lines, score).to_csv(output / f"dunn-{score}.csv")
            comparison.box_plots(lines, output / "boxes.png", "png")
            write_whole(str(output / PAGE), page.encode())
    if not quiet:
        _print(lines)
        if output is not None:
            console.print(f"written: {escape(str(output))}", highlight=False, soft_wrap=True)


def _pool(source: str) -> Any:
    """The pool that a source is, or None: a .npz with labels where features would have X."""
    from cehm_dask.paper.pools import arrays_of, read_pool

    if not source.endswith(".npz"):
        return None
    with arrays_of(Path(source)) as arrays:
        features = "X" in arrays or "labels" not in arrays
    return None if features else read_pool(Path(source))


def _checked(source: str, pool: Any, n_clusters: int | None, ensembles: int | None, pool_members: int | None) -> int:
    """The number of clusters; refuses options that do not go with the source."""
    if n_clusters is None and pool is not None:
        n_clusters = int(pool.n_clusters)
    if n_clusters is None:
        raise InputError(f"k is missing for {source}: say how many clusters you want, such as --k 10")
    if source.endswith(".npz") and ensembles is None:
        kind = "features" if pool is None else f"a pool of {pool.labels.shape[1]} members"
        raise InputError(f"{source} holds {kind}: say how many ensembles to draw, such as --ensembles 30")
    if ensembles is not None and ensembles < 1:
        raise InputError(f"ensembles={ensembles}: must be at least 1")
    if pool_members is not None:
        if pool is None:
            raise InputError(f"pool_members={pool_members}, but {source} is no pool: leave --pool-members out")
        pool.check(pool_members)
    return n_clusters


def _base_labels(url: str, *, hint: bool) -> Any:
    """The base labels; features given without --ensembles are refused as labels, so the hint is about that."""
    from cehm_dask.data.labels import as_labels

    try:
        return as_labels(url)
    except InputError as error:
        if not hint or isinstance(error, NotFoundError):
            raise
        said = f"{error}. If {url} holds features, say how many ensembles to draw: --ensembles 30"
        raise type(error)(said) from error


def _features(source: str) -> tuple[Any, Any]:
    """Features, and the classes stored with them."""
    from cehm_dask.paper.pools import arrays_of

    if not source.endswith(".npz"):
        return source, None
    with arrays_of(Path(source)) as arrays:
        if "X" not in arrays:
            raise InputError(
                f"{source} holds {', '.join(sorted(arrays))}: expected X (n × d) and, if known, y (n), or a pool's "
                "labels (n × members) and y (n)"
            )
        return arrays["X"], arrays.get("y")


def _classes(truth: str | None, own: Any, labels: Any) -> Any:
    """Classes as numbers, -1 where not known, or None."""
    from cehm_dask.data.ensemble_store import Ensemble
    from cehm_dask.results.truth import as_truth, encoded

    if truth is None and own is None and isinstance(labels.source, Ensemble):
        own = labels.source.truth
    known = truth if truth is not None else own
    if known is None:
        return None
    return encoded(as_truth(known, labels.n_samples).read(0, labels.n_samples), 0)[1]


class _Shown(Progress):
    """The method and ensemble that run now, in one line."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def advanced(self, what: str, done: int, total: int | None) -> None:
        self._status.update(f"{what}, ensemble {done + 1} of {total}")


def _print(lines: Any) -> None:
    from rich.table import Table

    from cehm_dask.paper import compare as comparing
    from cehm_dask.paper import comparison

    shown = [*[score for score in comparison.scored(lines) if score != "agreement"], "agreement"]
    several = lines["ensemble"].nunique() > 1
    extra = ["spread", "rank"] if several else []
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("method", *(comparison.NAMES[score] for score in shown), *extra, "clusters", "seconds", "peak"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in comparison.rows_of(comparing.summary(lines)):
        cells = [f"[bold]{row[score]}[/]" if score in row["best"] else row[score] for score in shown]
        table.add_row(row["title"], *cells, *(row[name] for name in (*extra, "clusters", "seconds", "peak")))
    console = Terminal()
    if not console.is_terminal:
        console = Terminal(width=WIDE)
    console.print(table)
    for _, line in lines[lines["note"].notna()].iterrows():
        console.print(escape(f"{line['title']} did not run: {line['note']}"), highlight=False, soft_wrap=True)
    if comparing.testable(lines):
        for score in comparison.scored(lines):
            p = comparing.kruskal_wallis(lines, score)
            console.print(f"{comparison.NAMES[score]}: Kruskal–Wallis p = {p:.2g}", highlight=False)
