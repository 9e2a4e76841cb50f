"""The scikit-learn estimator for base labels.

``CEHM`` takes base labels (one column per member) and gives the consensus. Top of the flow: checks parameters,
starts an engine for the labels, runs the stages and keeps what ``predict`` and ``membership`` need: the counts
table C and the members' labels, never anything of size n but the labels and margins themselves.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cehm_dask.clusters.current import client_of
from cehm_dask.data.alignment import joined
from cehm_dask.data.attributes import kind_of
from cehm_dask.data.collections import is_collection
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import known_labels
from cehm_dask.data.ingest import label_blocks
from cehm_dask.data.model_store import save_model
from cehm_dask.data.names import are_names
from cehm_dask.engine.collection import Held
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import InputError
from cehm_dask.job import Where, find_consensus, opened, seed_of
from cehm_dask.lazy import lazily, read_field, read_membership
from cehm_dask.method.params import Params
from cehm_dask.method.problem import Problem
from cehm_dask.method.result import gather, join
from cehm_dask.method.rounds import Harvest
from cehm_dask.method.warm import warm_from
from cehm_dask.model import Model, model_of, model_of_arrays, saved_tables, stored_tables
from cehm_dask.notebook import ShowsClusters, shown
from cehm_dask.progress import ProgressLike

SETTINGS = ("variant", "similarity", "belonging", "schedule", "choose", "max_iter")
"""Parameters that a stored model keeps."""


class CEHM(ShowsClusters, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Clustering ensemble by k-HyperEdge Medoids: many clusterings of the same samples in, one out.

    Parameters
    ----------
    n_clusters : int, a sequence of int, or "auto"
        Clusters wanted. Several values are all run, and the one that the members single out is kept; a warning says if
        none does. "auto" looks at 2 to 30 (no more than √n, nor than the finest member has), and runs one.
    variant : {"auto", "released", "printed", "cosine", "kmeans", "tau"}, default "auto"
        What is computed. "auto" takes several candidates to the end, each repaired until it has k clusters, and keeps
        one from the labels alone; with one of the three knobs below, or ``init``, it is a single chain from medoids.
        "released" is the authors' program, "printed" the equations of the paper: these two may end with fewer
        clusters than asked for. The others are chains with another belonging.
    similarity : str, optional
        Of hyperedges, for the medoids: "jaccard" or "containment". Default: that of the variant.
    belonging : str, optional
        Weight of a hyperedge: the share of it that a cluster holds ("share"), the number of samples ("count"), that
        share divided by the cluster's length ("cosine"), or the weights that climb the normalised association
        ("kmeans") or Goodman and Kruskal's τ ("tau"). Default: that of the variant.
    schedule : str, optional
        Samples assigned in a diffusion round: equal steps and exactly so many ("fixed"); a share of what is left and
        everything tied with the last one ("renewed"); or all at once ("direct"). Default: that of the variant.
    tries : int, default 10
        Solutions of the k-medoids problem, from different seeds, of which the best are taken; none costs a sweep, and
        one that came up as the best three times ends the search. The authors' program has 1.
    restarts : int, default 1
        Different medoid starts: further candidates of "auto"; of the other variants, further runs in the same sweeps.
    choose : {"agreement", "loss"}, default "agreement"
        Which restart of a named variant is kept: highest mean NMI with the members, or lowest final loss.
    init : sequence of int, optional
        Hyperedge numbers to start from instead of k-medoids (member by member, inside a member by ascending label).
    max_iter : int, default 100
        Most rounds of adjustion.
    start_rows : int, optional
        Rows of a seeded sample that the start is found on (``docs/larger-than-memory.md``). Default: all rows.
    weights : sequence of float, or dict of float by member; optional
        How much each member counts, or (as many numbers as there are base clusters) each base cluster, member by
        member, inside a member by ascending label. A member of weight 2 counts as two copies of it. By name, members
        that are not named count 1. Default: all alike.
    random_state : int, RandomState or None
        Seed of the medoid starts.

    Attributes
    ----------
    labels_ : (n_samples,) int64
        Cluster of each sample; -1 where all base labels are missing. In a store, int16.
    margin_ : (n_samples,) float64
        Lead of the cluster over the runner-up in mean shares of base clusters, from 0 (tie) to 1, but for counts.
    confidence_ : (n_samples,) float64
        From 0 to 1: how sure the members are, together, that the sample belongs to its cluster.
    medoids_ : (n_clusters,) int
        Hyperedges the clusters grew from; with "auto", the hyperedge most like each cluster at the start.
    counts_ : (n_hyperedges, n_clusters) int64
        Samples each hyperedge shares with each cluster.
    weights_ : (n_hyperedges, n_clusters) float64
        Belonging weights that the labels follow from.
    candidates_ : list of dict
        Start and belonging of each candidate, its τ, evenness and their sum, agreement, explained entropy (Theil's U),
        sizes of its clusters, clusters repaired, and whether it was kept.
    candidate_reason_ : str
        Why that one was kept.
    loss_history_ : (n,) float64
        Loss of each adjustion round; rises only where an empty cluster was repaired.
    loss_fractions_ : (n,) float64
        The same as shares of the largest loss that is possible: they keep their digits at any number of samples.
    growth_ : tuple of int
        Samples assigned after the start and after each diffusion round.
    n_iter_ : int
        Assignments made: the start, diffusion and adjustion rounds.
    agreement_ : float
        Mean NMI with the members.
    member_agreement_ : (n_members, n_members) float64
        NMI between members; of very many, between those of ``compared_members_`` (None: all are compared).
    cluster_sizes_ : (n_clusters,) int64
        Samples in each cluster.
    scan_ : list of dict
        A record for every k that was run, of its kept start: n_clusters, n_clusters_found, agreement, loss, mean
        margin, stability (mean NMI between restarts; None with one start) and the number of restarts.
    choice_ : dict
        n_clusters that was kept, clear (whether the members single it out) and the reason in words.
    n_clusters_ : int
        Clusters of the result.
    n_clusters_found_ : int
        Clusters that hold samples.
    feature_names_in_ : (n_members,) str
        Names of the members, where they have any; new base labels are matched by them.
    index_ : pandas.Index
        Names of the samples, where base labels came as a pandas data frame or as series.
    n_silent_ : int
        Samples whose base labels are all missing.
    n_sweeps_ : int
        Passes made over the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from cehm_dask import CEHM
    >>> base_labels = np.array([[0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 0, 1]])
    >>> CEHM(n_clusters=2, random_state=0).fit_predict(base_labels).tolist()
    [1, 1, 0, 0, 0]
    """

    def __init__(
        self,
        n_clusters: int | Sequence[int] | str,
        variant: str = "auto",
        similarity: str | None = None,
        belonging: str | None = None,
        schedule: str | None = None,
        tries: int = 10,
        restarts: int = 1,
        choose: str = "agreement",
        init: Sequence[int] | None = None,
        max_iter: int = 100,
        start_rows: int | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.variant = variant
        self.similarity = similarity
        self.belonging = belonging
        self.schedule = schedule
        self.tries = tries
        self.restarts = restarts
        self.choose = choose
        self.init = init
        self.max_iter = max_iter
        self.start_rows = start_rows
        self.weights = weights
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        output: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        grow_from: str | os.PathLike[str] | None = None,
        memory: str | int | None = None,
        client: Any = None,
        record: Callable[[int, str, int, NDArray[np.int16]], None] | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> Self:
        """Compute the consensus of base labels. Nothing but ``X`` changes a label.

        Parameters
        ----------
        X : (n_samples, n_members) integers, dask array, data frame, list or dict of columns, file, or ensemble.zarr
            Base labels, -1 or NaN where one is missing. Series in a list or dict are matched by their index, which is
            then ``index_``; a row that one of them does not name is a missing label. A store (path or URL) is read
            block by block. The blocks of a dask array or data frame stay where they are, and ``labels_``, ``margin_``
            and ``confidence_`` are dask collections with its chunks or index, computed when asked for.
        y : ignored
        output : path or URL, optional
            Of a consensus.zarr to write. Every round ends in a checkpoint there; the same call after an interruption
            resumes from it. ``labels_`` and ``margin_`` are then Zarr arrays, read when indexed.
        overwrite : bool
            Replace an output that exists.
        grow_from : path or URL, optional
            Of a consensus.zarr of fewer samples, or of fewer or more members: the run starts from it, with the same
            belonging and number of clusters, and only moves samples until none moves (``docs/growing.md``).
        memory : str or int, optional
            What a process may take in all, such as "2GiB"; default: a share of what is free.
        client : distributed.Client, address, cluster file, or False; optional
            Whose workers do the sweeps. Default: the current client, if there is one; False: threads of this process.
        record : callable (restart, stage, round, assignment), optional
            Gets every assignment on the way: after the start, each diffusion and each adjustion round.
        progress : bool, callable (Event) or Progress, optional
            True: shown in the notebook or on the terminal. A function gets a small record of every finished round; a
            ``Progress`` also the rows done inside a sweep.
        """
        auto = isinstance(self.n_clusters, str) and self.n_clusters == "auto"
        if auto and self.init is not None:
            raise InputError("init: give n_clusters as a number with it, not as 'auto'")
        wanted: Any = 2 if auto else self.n_clusters
        ks = tuple(wanted) if isinstance(wanted, list | tuple | range | np.ndarray) else (wanted,)
        if not ks:
            raise InputError("n_clusters=[]: give at least one number of clusters")
        params = self._params(ks[0])
        seed = seed_of(self.random_state)
        follow = None if record is None else partial(_recorded, record)
        place = None if output is None else os.fspath(output)
        X = joined(X) if isinstance(X, list | tuple | Mapping) and not isinstance(X, Held) else X
        with shown(progress) as told, client_of(client) as who, opened(X, who, memory) as held:
            labels, lazy = held.labels, held.collection is not None and output is None
            where = Where(memory=memory, client=who, output=place, overwrite=overwrite, lazy=lazy)
            how: dict[str, Any] = {"ks": ks, "auto": auto}
            if grow_from is not None:
                warm = warm_from(open_consensus(os.fspath(grow_from)), labels)
                params, seed, how = warm.params_for(params, ks, auto), warm.seed, {"warm": warm}
            outcome = find_consensus(labels, params, seed, where, record=follow, progress=told, **how)
        result, problem = outcome.consensus, outcome.consensus.chosen.problem
        self.labels_ = _wide(outcome.labels)
        self.margin_ = outcome.margin
        self.confidence_ = outcome.confidence
        self.cluster_sizes_ = outcome.sizes
        self.medoids_ = problem.medoids
        self.loss_history_ = np.asarray(problem.losses)
        self.loss_fractions_ = np.asarray(problem.loss_fractions)
        self.growth_ = tuple(problem.growth)
        self.n_iter_ = problem.round
        self.agreement_ = result.chosen.agreement
        self.choice_ = asdict(result.choice)
        self.candidates_ = result.chosen.candidates
        self.candidate_reason_ = result.chosen.reason
        self.scan_ = list(outcome.scan)
        self.member_agreement_ = result.member_agreement
        self.compared_members_ = result.hyperedges.compared_members
        self.n_clusters_found_ = result.chosen.n_clusters_found
        self.n_silent_ = result.hyperedges.n_silent
        self.n_sweeps_ = outcome.sweeps
        values = labels.values_of(result.hyperedges.slots)
        tables = (problem.counts, problem.final_weights, problem.final_lead, result.correlation)
        self._take_up(Model(*tables, values, labels.names, result.hyperedges.weight))
        self.__dict__.pop("index_", None)  # of an earlier fit
        if hasattr(X, "iloc") and not is_collection(X):
            self.index_ = X.index
        if lazy:
            self._collection = held.collection  # what lies with workers is kept there as long as the model
            self.labels_, self.margin_, self.confidence_ = self._fields(held.collection, held.starts, problem.singled)
        return self

    def _fields(self, X: Any, starts: Sequence[int] | None = None, singled: Mapping[int, int] | None = None) -> Harvest:
        """:meth:`predict_details` of a dask collection, computed when asked for."""
        kinds = {"labels": np.int64, "margin": np.float64, "confidence": np.float64}
        return Harvest(
            *(
                lazily(X, read_field, self._model, field, singled or {}, name=field, dtype=kind, starts=starts)
                for field, kind in kinds.items()
            )
        )

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Cluster of new samples from their base labels; labels never seen count as missing.

        A sample with no known label gets -1. A dask array or data frame gives one, computed when asked for.
        """
        return cast(NDArray[np.int64], _wide(self.predict_details(X).labels))

    def predict_details(self, X: Any, *, singled: Mapping[int, int] | None = None) -> Harvest:
        """Cluster of new samples, how far it leads the runner-up, and confidence; -1, 0, 0 where no label is known.

        ``singled`` gives clusters to rows that no member tells from others.
        """
        check_is_fitted(self)
        return self._fields(X) if is_collection(X) else self._model.predict(X, singled)

    def predict_blocks(self, X: Any, leave_out: Sequence[str] = ()) -> Iterator[Harvest]:
        """:meth:`predict_details` for base labels that do not fit in memory, some rows at a time.

        ``leave_out`` names columns of a table that are no members.
        """
        for labels in label_blocks(X, leave_out):
            yield self.predict_details(labels)

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write what ``predict`` needs to a Zarr store: small tables, whatever the number of samples."""
        check_is_fitted(self)
        model = self._model
        tables = {"counts": model.counts, "weights": model.weights, "lead": model.lead}
        if model.weight is not None:
            tables["hyperedge_weight"] = model.weight
        facts = {
            "n_clusters": int(self.n_clusters_),
            "settings": {name: getattr(self, name) for name in SETTINGS},
            "correlation": model.correlation,
            "label_values": [known.tolist() for known in model.values],
            "members": list(model.names),
        }
        save_model(os.fspath(url), tables, facts, overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> "CEHM":
        """The model that :meth:`save` wrote, or behind a consensus.zarr, ready to predict."""
        url = os.fspath(url)
        tables, facts, settings = saved_tables(url) if kind_of(url) == "model" else stored_tables(url)
        values = [known_labels(known) for known in facts["label_values"]]
        correlation = {"correlation": [facts["correlation"]]}
        model = model_of({**tables, **correlation}, values, facts["members"], url)
        found = cls(facts["n_clusters"], **{name: settings[name] for name in SETTINGS})
        return found._take_up(model)

    def membership(self, X: Any) -> NDArray[np.float64]:
        """Confidence of samples in every cluster, (n_samples, n_clusters): each row sums to 1.

        A sample with no known label belongs to all clusters alike.
        """
        check_is_fitted(self)
        if is_collection(X):
            found = lazily(
                X, read_membership, self._model, name="membership", dtype=np.float64, columns=self.n_clusters_
            )
            return cast(NDArray[np.float64], found)
        return self._model.membership(X)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """:meth:`membership`, so that clusters can be features of a further step of a pipeline."""
        return self.membership(X)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing label
        tags.input_tags.categorical = True
        return tags

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What ``predict`` needs, as plain arrays; for whole-number labels."""
        check_is_fitted(self)
        return self._model.to_arrays()

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]], url: str) -> Self:
        """Take up what :meth:`to_arrays` gave, ready to predict; ``url`` names where it was stored."""
        return self._take_up(model_of_arrays(arrays, url))

    def counted_from_one(self) -> Self:
        """The same for members whose labels are counted from 1, as :class:`ClusterEnsemble` does, not from 0."""
        return self._take_up(replace(self._model, values=[known + 1 for known in self._model.values]))

    def _take_up(self, model: Model) -> Self:
        self._model = model
        self.counts_, self.weights_ = model.counts, model.weights
        self.n_clusters_, self.n_features_in_ = model.counts.shape[1], len(model.values)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if are_names(model.names):
            self.feature_names_in_ = np.array(model.names, object)
        return self

    def _params(self, n_clusters: int) -> Params:
        knobs = {name: value for name, value in self.get_params(deep=False).items() if name != "random_state"}
        return Params(**{**knobs, "n_clusters": n_clusters})


def _wide(labels: Any) -> Any:
    """Labels for users' arithmetic, which two bytes would overflow; stores and dask collections stay as they are."""
    return labels.astype(np.int64) if isinstance(labels, np.ndarray) else labels


def _recorded(
    record: Callable[[int, str, int, NDArray[np.int16]], None], problem: Problem, stage: str, engine: Engine
) -> None:
    # A sweep, also where workers keep state: margins that were left behind are brought up to date on the way.
    found = engine.sweep("record", gather, join, problem.last_order())
    record(problem.number, stage, problem.round, found.labels)
