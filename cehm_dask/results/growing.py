"""A consensus that grows: more samples, more members, or fewer, without starting over.

After the consensus. The ensemble grows first (:mod:`cehm_dask.data.growth`), then the consensus goes on from the counts
of the one before (:mod:`cehm_dask.method.warm`). Given again after an interruption, the same call goes on: an ensemble
that has grown already is known by what it says of itself, and never grows twice.
"""

import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from cehm_dask.data.attributes import is_whole, kind_of, refuse_foreign
from cehm_dask.data.consensus_store import StoredConsensus, open_consensus
from cehm_dask.data.encoding import rows_read
from cehm_dask.data.ensemble_store import Ensemble, open_ensemble
from cehm_dask.data.ensemble_writer import CHUNK_BYTES, CHUNKS_PER_SHARD, create_ensemble, sole_writer
from cehm_dask.data.features import BLOCK_ROWS, as_features
from cehm_dask.data.growth import Growth, codes_of_samples, fewer_members, more_members, more_samples, write_shard
from cehm_dask.data.ingest import open_stream
from cehm_dask.data.labels import as_labels
from cehm_dask.data.preparation import FeatureWarning, Preparation, warn_of_unseen
from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError, StoreError
from cehm_dask.job import Outcome, Where, budget_of, find_consensus
from cehm_dask.machine import require_memory, this_machine
from cehm_dask.members.fit import Labeller
from cehm_dask.members.stored import arrays_of, encoding_of, read_fitted
from cehm_dask.method.warm import warm_from
from cehm_dask.progress import Count, ProgressLike, as_progress
from cehm_dask.wording import option

LABEL_BYTES = 64
"""Of a base label in a block of rows that is read: as text, as a number, as a code, and copies."""


def grow(
    consensus: str | os.PathLike[str],
    ensemble: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    samples: Any = None,
    features: Any = None,
    members: Any = None,
    drop_members: Sequence[str] | None = None,
    into: str | os.PathLike[str] | None = None,
    id: str | None = None,
    memory: str | int | None = None,
    client: Any = None,
    overwrite: bool = False,
    progress: ProgressLike | None = None,
) -> Outcome:
    """Grow an ensemble, and a consensus with it.

    The result has the belonging and the number of clusters of the consensus before. Of ``samples``, ``features``,
    ``members`` and ``drop_members``, one is given; with none, the ensemble is taken as it is: it was grown before, by
    ``cehm generate --append``, say.

    Parameters
    ----------
    consensus : path or URL
        Of the consensus.zarr before.
    ensemble : path or URL
        Of the ensemble.zarr that it was made of.
    output : path or URL
        Of the consensus.zarr to write. The same call after an interruption resumes from it.
    samples : array, data frame, path or URL, optional
        Base labels of new rows by the same members, matched by name; labels that no row had before count as missing.
    features : array, data frame, path or URL, optional
        Features of new rows: the members that the ensemble holds label them.
    members : array, data frame, path or URL, optional
        Base labels of all rows by new members.
    drop_members : sequence of str, optional
        Names of members to leave out; needs ``into``.
    into : path or URL, optional
        Where the grown ensemble goes; default: in the place of ``ensemble``, which stays until the new one is whole.
    id : str, optional
        Column of a table of new rows or members that names the rows.
    memory : str or int, optional
        What a process may take in all, such as "2GiB"; default: a share of what is free.
    client : distributed.Client, optional
        Whose workers do the sweeps; default: threads of this process, which always write the ensemble.
    overwrite : bool
        Replace an output, or an ensemble ``into``, that exists.
    progress : callable (Event) or Progress, optional
    """
    ways = {"samples": samples, "features": features, "members": members, "drop_members": drop_members}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)}: one at a time; grow the result again for the other")
    if drop_members is not None and into is None:
        raise InputError(
            f"drop_members: the ensemble {os.fspath(ensemble)} would lose them; name a place for the one without, "
            f"{option('into', 'fewer.zarr')}"
        )
    if not given and into is not None:
        raise InputError(f"into={os.fspath(into)!r}: nothing is added or left out; leave it out")
    where = Where(memory=memory, client=client, output=os.fspath(output), overwrite=overwrite)
    _refuse_finished(os.fspath(output), overwrite=overwrite)
    stored, url = open_consensus(os.fspath(consensus)), os.fspath(ensemble)
    if given:
        target = url if into is None else os.fspath(into)
        left_out = [] if id is None else [id]
        before = open_ensemble(url)
        _refuse_other(before, stored, in_place=into is None)
        _require(before, memory)
        with tempfile.TemporaryFile() as file:
            growth, labeller = _growth(stored, before, ways, left_out, file)
            _require_consensus(growth, stored, where)
            _write(growth, labeller, stored, target, in_place=into is None, overwrite=overwrite, progress=progress)
        url = target
    labels = as_labels(url)
    warm = warm_from(stored, labels)
    return find_consensus(labels, warm.params, warm.seed, where, warm=warm, progress=progress)


def _refuse_finished(url: str, *, overwrite: bool) -> None:
    """An error, before the ensemble grows, if the result cannot go to its place."""
    refuse_foreign(url, "consensus")
    if is_whole(url) and not overwrite:
        raise StoreError(f"output {url} is finished: choose another name, or pass {option('overwrite')}")


def _refuse_other(before: Ensemble, stored: StoredConsensus, *, in_place: bool, grown: str | None = None) -> None:
    """An error if an ensemble is neither that of the consensus nor, in its place, one that grew out of it.

    ``grown`` is the identity of the growth that it must have had, once that is known.
    """
    made_of = stored.facts["identity"].get("labels")
    found = before.grown if in_place else {}
    if before.fingerprint == made_of or (found.get("from") == made_of and grown in (None, found.get("identity"))):
        return
    raise StoreError(
        f"ensemble {before.url} has fingerprint {before.fingerprint}, the consensus {stored.url} was made of "
        f"{made_of}: name that ensemble; or, if this one has grown, add nothing to it"
    )


def _require_consensus(growth: Growth, stored: StoredConsensus, where: Where) -> None:
    """Refuse, before the ensemble grows, what the consensus could not hold."""
    labels = as_labels(growth.before.url)
    widths, names = tuple(growth.all_widths), tuple(growth.all_names)
    itemsize = np.min_scalar_type(max(widths) - 1).itemsize
    then = replace(labels, n_samples=growth.n_samples, widths=widths, names=names, itemsize=itemsize)
    params = warm_from(stored, labels).params
    budget_of(then, params, [params.n_clusters], where)


def _require(before: Ensemble, memory: str | int | None) -> None:
    machine = this_machine(memory)
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "new rows of a block": rows_read(len(before.widths)) * LABEL_BYTES * len(before.widths),
        "shards that are written": machine.threads * 4 * CHUNKS_PER_SHARD * CHUNK_BYTES,
    }
    require_memory("the growth of the ensemble", terms, machine.allowed, "")


def _growth(
    stored: StoredConsensus, before: Ensemble, ways: dict[str, Any], left_out: list[str], file: IO[bytes]
) -> tuple[Growth, Labeller | None]:
    """What the ensemble becomes, and the fitted members that it then holds."""
    if ways["drop_members"] is not None:
        growth = fewer_members(before, list(map(str, ways["drop_members"])))
        labeller = _labeller(before)
        kept = growth.kept
        if labeller is not None:
            parts = tuple(labeller.members[j] for j in kept), tuple(labeller.widths[j] for j in kept)
            labeller = Labeller(labeller.scaling, *parts)
        return growth, labeller
    if ways["members"] is not None:
        stream, first = open_stream(ways["members"], left_out), int(stored.facts["n_members"])
        return more_members(before, stream, first, file), None
    if ways["features"] is not None:
        return more_samples(before, _labelled(before, ways["features"], left_out), file), _labeller(before)
    unseen: list[int] = []
    growth = more_samples(before, codes_of_samples(before, ways["samples"], left_out, unseen), file)
    if sum(unseen):
        warnings.warn(
            f"{sum(unseen):,} base labels of new rows are of clusters that no row had before: they count as missing",
            FeatureWarning,
            stacklevel=3,
        )
    return growth, _labeller(before)


def _labeller(before: Ensemble) -> Labeller | None:
    return read_fitted(before)[0] if before.fitted()[0] else None


def _labelled(before: Ensemble, features: Any, left_out: list[str]) -> Iterator[Codes]:
    """Codes of new rows by the members that the ensemble holds, block by block."""
    labeller, facts = read_fitted(before)
    unseen: Counter[str] = Counter()
    said = facts["prepared"]
    prepare = Preparation.of(**{**said, "drop": [*(said["drop"] or ()), *left_out]})
    found = as_features(features, prepare.again(encoding_of(before.url, facts), unseen)).select(facts["features"])
    for start in range(0, found.n_samples, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, found.n_samples)
        yield labeller.label(found.read(start, stop), start, found.names)
    warn_of_unseen(unseen)


def _write(
    growth: Growth,
    labeller: Labeller | None,
    stored: StoredConsensus,
    url: str,
    *,
    in_place: bool,
    overwrite: bool,
    progress: ProgressLike | None,
) -> None:
    """Write what the ensemble becomes, unless that was done."""
    made_of, before = str(stored.facts["identity"].get("labels")), growth.before
    grown = growth.facts(made_of)
    if before.fingerprint != made_of:
        # In its place, it may have grown already, before an interruption; then it holds what is to be added.
        _refuse_other(before, stored, in_place=in_place, grown=grown["identity"])
        return
    if not in_place and kind_of(url) == "ensemble" and not overwrite:
        there = open_ensemble(url)
        if there.grown.get("identity") == grown["identity"]:
            return
    fitted = None
    if labeller is not None:
        facts = before.fitted()[1]
        fitted = (arrays_of(labeller, facts["scale"]), facts)
    with sole_writer(url, overwrite=overwrite or in_place), workers(this_machine(None).threads) as who:
        writer = create_ensemble(
            url,
            growth.n_samples,
            growth.all_widths,
            names=growth.all_names,
            values=growth.all_values,
            members=growth.all_members,
            source=before.source,
            overwrite=overwrite or in_place,
            grows=in_place,
            identity=grown["identity"],
            grown=grown,
        )
        count, done = Count(as_progress(progress), "written", growth.n_samples), []
        for digest, sizes in who.each(write_shard, range(writer.n_shards), growth, writer):
            done.append((digest, sizes))
            count.add(int(writer.shard_rows))
        sizes = [np.sum(parts, axis=0) for parts in zip(*(own for _, own in done), strict=True)]
        writer.finish([digest for digest, _ in done], sizes, fitted=fitted)
