"""What estimators show where they are used: progress, in a notebook or a terminal, and their clusters as a table.

Below the estimators. Nothing is shown unless it is asked for, and everything that comes from data is escaped.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from html import escape
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.utils import estimator_html_repr

from cehm_dask.errors import CehmError, InputTypeError
from cehm_dask.profiles.words import effect, number, shortened
from cehm_dask.progress import Event, Progress, ProgressLike, as_progress

EVERY_SECONDS = 0.2
"""Between two changes of what a notebook shows."""
MOST_ROWS = 20
"""Clusters in a table, the largest."""
MOST_VALUES = 10_000_000
"""Features that are described for a table that was not asked for: a second or so."""

STYLE = "border-collapse:collapse;font-size:90%;font-variant-numeric:tabular-nums"
CELL = "text-align:right;padding:2px 10px;white-space:nowrap"


@contextmanager
def shown(given: ProgressLike | bool | None) -> Iterator[Progress]:
    """What a user passed as ``progress``; True is shown while the block runs, in a notebook or on the terminal."""
    if given is not True:
        if given is not None and given is not False and not isinstance(given, Progress) and not callable(given):
            raise InputTypeError(f"progress={given!r}: expected True, False, a function or a Progress")
        yield as_progress(None if isinstance(given, bool) else given)
        return
    with _display() as display:
        yield display


def _display() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return Notebook()
    from rich.console import Console

    from cehm_dask.bars import Rounds

    return Rounds(Console(stderr=True))


class Notebook(Progress):
    """Progress below a cell of a notebook: the work at hand and the latest round."""

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._html = HTML
        self._work, self._round, self._drawn = ("", 0, 0), "", 0.0
        self._began = time.monotonic()
        self._handle = display(HTML(self._told()), display_id=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._handle.update(self._html(self._told(over=True)))

    def advanced(self, what: str, done: int, total: int | None) -> None:
        self._work = what, done, total or 0
        self._draw()

    def round_done(self, event: Event) -> None:
        loss = "" if event.loss is None else f", loss {number(event.loss)}"
        share = event.assigned / max(1, event.n_samples)
        self._round = f"{event.stage}, round {event.round}: {share:.1%} assigned, {event.moved:,} moved{loss}"
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= EVERY_SECONDS:
            self._drawn = now
            self._handle.update(self._html(self._told()))

    def _told(self, *, over: bool = False) -> str:
        what, done, total = self._work
        spent = f"{time.monotonic() - self._began:.1f} s"
        if over:
            return f"<div>{escape(self._round or what)} &middot; {spent}</div>"
        counted = f"{done:,} of {total:,}" if total else f"{done:,}"
        bar = f'<progress value="{done}" max="{total or 1}" style="width:14em"></progress>'
        return f"<div>{bar} {escape(what)} {counted} &middot; {spent}<br>{escape(self._round)}</div>"


class ShowsClusters:
    """Fitted estimators are shown as scikit-learn does, with a table of their clusters below."""

    def _repr_html_inner(self) -> str:
        table = _table(self)
        # scikit-learn lists all attributes; a copy has none that would be computed for it.
        return str(estimator_html_repr(copy(self))) + table

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        found = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            found["text/html"] = self._repr_html_inner()
        return found


def _table(model: Any) -> str:
    """Clusters, largest first; empty before a fit. Nothing that is computed when asked for, or stored, is read."""
    sizes = getattr(model, "cluster_sizes_", None)
    if sizes is None:
        return ""
    order = [int(c) for c in np.argsort(-np.asarray(sizes), kind="stable") if sizes[c]]
    columns: dict[str, dict[int, str]] = {"cluster": {c: str(c) for c in order}}
    columns["samples"] = {c: f"{sizes[c]:,}" for c in order}
    columns["share"] = {c: f"{sizes[c] / max(1, np.sum(sizes)):.1%}" for c in order}
    columns["confidence"] = _confidence(model, len(sizes))
    columns["most telling"] = _telling(model)
    named = {name: values for name, values in columns.items() if values}
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in named)
    rows = [[escape(values.get(c, "")) for values in named.values()] for c in order[:MOST_ROWS]]
    body = "".join("<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    left = len(order) - MOST_ROWS
    more = f"<div>and {left:,} smaller clusters</div>" if left > 0 else ""
    return f'<table style="{STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _confidence(model: Any, n_clusters: int) -> dict[int, str]:
    """Mean confidence of each cluster, where labels and confidences are in memory."""
    labels, confidence = model.labels_, model.confidence_
    if not isinstance(labels, np.ndarray) or not isinstance(confidence, np.ndarray):
        return {}
    inside = labels >= 0
    counts = np.bincount(labels[inside], minlength=n_clusters)
    sums = np.bincount(labels[inside], weights=confidence[inside], minlength=n_clusters)
    return {c: f"{sums[c] / counts[c]:.2f}" for c in np.flatnonzero(counts).tolist()}


def _telling(model: Any) -> dict[int, str]:
    """The feature of largest effect in each cluster, where features are described or few enough to be."""
    kept = getattr(model, "_to_profile", None)
    described = "_profile" in vars(model)
    if not described and (kept is None or not 0 < int(getattr(kept, "size", 0)) <= MOST_VALUES):
        return {}
    try:
        frame = model.profile_
    except CehmError:  # of memory, or of features that have changed: the table does without
        return {}
    first = frame[(frame["rank"] == 0) & frame["effect"].notna()]
    told = zip(first["cluster"].tolist(), first["feature"].tolist(), first["effect"].tolist(), strict=True)
    return {int(c): f"{shortened(str(feature))} ({effect(size)})" for c, feature, size in told}
