"""``ClusterEnsemble``: features in, consensus out, by scikit-learn's conventions.

Beside ``CEHM``, for users who have features and no base labels: makes the members, then their
consensus, and keeps the fitted members so that new rows can be labelled. Saved without pickle.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cehm_dask.clusters.current import client_of
from cehm_dask.data.attributes import require
from cehm_dask.data.collections import is_collection
from cehm_dask.data.features import Features, Scaling, as_features
from cehm_dask.data.model_store import load_model, save_model
from cehm_dask.data.names import are_names
from cehm_dask.engine.collection import Held
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError, InputTypeError, StoreError
from cehm_dask.estimator import CEHM
from cehm_dask.job import Where, machine_of
from cehm_dask.lazy import like
from cehm_dask.machine import cores
from cehm_dask.members.collection import base_labels_of, features_on, label_lazily, stored_labels_of
from cehm_dask.members.fit import Labeller, Linear, Member, MemberPlan, k_range, plan_members
from cehm_dask.members.generate import generate, label_all, make_labeller, makers
from cehm_dask.method.params import auto_members
from cehm_dask.method.rounds import Harvest
from cehm_dask.progress import Progress, ProgressLike, as_progress

CONSENSUS = ("variant", "tries", "restarts", "choose", "max_iter")
"""Parameters handed on to the consensus."""

FITTING = ("scale", "impute", "fit_rows", "full_lloyd")
"""Parameters of how members are fitted."""


class ClusterEnsemble(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Many clusterings of the same features, and their consensus.

    Parameters
    ----------
    n_clusters : int, or "auto"
        Clusters wanted; "auto": as many as the members single out, see :class:`CEHM`. Members are then made as
        for k = 20, or √n if that is less.
    members : int, default 30
        Base clusterings to make.
    base : {"kmeans", "minibatch", "mixture", "birch", "dask-ml"}, an estimator, or a sequence of these
        How members cluster; of several, members take turns. An estimator needs ``predict``, or ``fit_predict`` if
        members are fitted on all rows.
    scale : {"none", "standard", "minmax", "robust"} or a transformer, default "standard"
        A transformer has ``fit`` and ``transform``; a copy of it is fitted on the rows that members are fitted on. One
        of dask-ml is fitted on all rows of a dask collection, where they lie.
    k_min, k_max : int, optional
        Fewest and most clusters of a member; default as in the paper: k to max(min(⌊√n⌋, 50), ⌈1.5 k⌉).
    fit_rows : int, optional
        Rows that members are fitted on, drawn at random; default: all up to 32768, else so many.
    full_lloyd : bool, default False
        Whether k-means members go on from the centres of the sample over all rows, all in the same sweeps.
    subspace : float, optional
        Share of the features that each member sees.
    projection : int, optional
        Dimensions of a random projection that each member sees.
    bootstrap : bool, default False
        Whether members are fitted on rows drawn with repetition.
    impute : str, optional
        What to do about values that are not finite: "mean" replaces them; None refuses them.
    variant, tries, restarts, choose, max_iter
        Of the consensus, as in :class:`CEHM`.
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_, margin_, confidence_
        Cluster of each sample, how far it leads, and how sure the members are.
    feature_names_in_ : (n_features,) str
        Names of the features, where they have any; columns of new data are matched by them.
    members_ : list of dict
        Algorithm, parameters, seed and seconds of each member.
    base_labels_ : (n_samples, members) unsigned
        Labels of the members, from 1.
    consensus_ : CEHM
        The fitted consensus.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from cehm_dask import ClusterEnsemble
    >>> model = ClusterEnsemble(n_clusters=3, restarts=10, random_state=0).fit(load_wine().data)
    >>> model.labels_.shape, len(model.members_)
    ((178,), 30)
    """

    def __init__(
        self,
        n_clusters: int | str,
        members: int = 30,
        base: Any = "kmeans",
        scale: Any = "standard",
        k_min: int | None = None,
        k_max: int | None = None,
        fit_rows: int | None = None,
        full_lloyd: bool = False,
        subspace: float | None = None,
        projection: int | None = None,
        bootstrap: bool = False,
        impute: str | None = None,
        variant: str = "auto",
        tries: int = 10,
        restarts: int = 1,
        choose: str = "agreement",
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.members = members
        self.base = base
        self.scale = scale
        self.k_min = k_min
        self.k_max = k_max
        self.fit_rows = fit_rows
        self.full_lloyd = full_lloyd
        self.subspace = subspace
        self.projection = projection
        self.bootstrap = bootstrap
        self.impute = impute
        self.variant = variant
        self.tries = tries
        self.restarts = restarts
        self.choose = choose
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        output: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        memory: str | int | None = None,
        client: Any = None,
        progress: ProgressLike | None = None,
    ) -> Self:
        """Make the members and their consensus.

        Parameters
        ----------
        X : (n_samples, n_features) numbers, dask array, data frame, sparse matrix, path or URL
            Rows of a dask array or data frame stay where they are, and so do their base labels; ``labels_``,
            ``margin_`` and ``confidence_`` are then dask collections with its chunks or index, computed when asked for.
        y : ignored
        output : path or URL, optional
            Of an ensemble.zarr to write base labels to; ``base_labels_`` is then a dask array that reads it. The same
            call after an interruption goes on with the shards that are missing.
        overwrite : bool
            Replace an output that exists.
        memory : str or int, optional
            What a process may take in all, such as "2GiB"; default: a share of what is free.
        client : distributed.Client, address, cluster file, or False; optional
            Whose workers do the work. Default: the current client, if there is one; False: threads of this process.
            Features that only this process holds stay with its threads.
        progress : callable (Event) or Progress, optional
            Gets every finished round of the consensus; a ``Progress`` also the members fitted and the rows done.
        """
        if isinstance(self.n_clusters, str) and self.n_clusters != "auto":
            raise InputTypeError(f"n_clusters={self.n_clusters!r}: expected a whole number, or 'auto'")
        seed = int(check_random_state(self.random_state).randint(2**31))
        settings = {name: getattr(self, name) for name in CONSENSUS}
        self.consensus_ = CEHM(self.n_clusters, random_state=seed, **settings)
        with client_of(client) as who:
            machine = machine_of(Where(memory=memory, client=who))
            features = features_on(X, who, machine)
            where = Where(memory, client=who, output=None if output is None else os.fspath(output), overwrite=overwrite)
            held = self._make(features, seed, where, as_progress(progress))
            self._name_features(features.names)
            rows = None if features.chunks is None else features.chunks.given_rows
            del features  # its rows are not needed for the consensus
            self.consensus_.fit(held, memory=memory, client=False if who is None else who, progress=progress)
        self.labels_ = like(X, self.consensus_.labels_, "labels", rows)
        self.margin_ = like(X, self.consensus_.margin_, "margin", rows)
        self.confidence_ = like(X, self.consensus_.confidence_, "confidence", rows)
        return self

    def _make(self, features: Features, seed: int, where: Where, progress: Progress) -> Held:
        """Make the members and their labels; the latter as the consensus takes them."""
        plans = self._plans(features.n_samples, seed)
        fitting: dict[str, Any] = {name: getattr(self, name) for name in FITTING}
        with makers(features, len(plans), where.client, where.memory, fit_rows=self.fit_rows) as who:
            made = make_labeller(features, plans, seed, who, progress=progress, **fitting)
            self._labeller, self.members_ = made
            if where.output is None:
                held, self.base_labels_ = base_labels_of(features, made[0], who, where.client, machine_of(where))
                return held
        how: dict[str, Any] = {"memory": where.memory, "client": where.client or False, "overwrite": where.overwrite}
        generate(features, where.output, plans, seed, made=made, progress=progress, **how, **fitting)
        held, self.base_labels_ = stored_labels_of(features, made[0], where.output)
        return held

    def _plans(self, n_samples: int, seed: int) -> list[MemberPlan]:
        low, high = k_range(self._made_for(n_samples), n_samples)
        low, high = self.k_min or low, self.k_max or max(high, self.k_min or 0)
        drawn = {name: getattr(self, name) for name in ("base", "subspace", "projection", "bootstrap")}
        return plan_members(self.members, low, high, seed, **drawn)

    def _name_features(self, names: Sequence[str]) -> None:
        self._names, self.n_features_in_ = tuple(names), len(names)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if are_names(names):
            self.feature_names_in_ = np.array(names, object)

    def _made_for(self, n_samples: int) -> int:
        """The k that members are made for."""
        return auto_members(n_samples) if isinstance(self.n_clusters, str) else self.n_clusters

    def predict(self, X: Any) -> NDArray[np.int16]:
        """Cluster of new rows: the fitted members label them, then the consensus does.

        A dask array or data frame gives one, computed when asked for.
        """
        check_is_fitted(self)
        if is_collection(X):
            codes = label_lazily(X, self._labeller, self._names)
            return cast(NDArray[np.int16], like(X, self.consensus_.predict(codes), "labels"))
        features = self._fitting(X)
        with workers(cores()) as pool:
            return self.consensus_.predict(label_all(features, self._labeller, pool))

    def predict_blocks(self, X: Any) -> Iterator[Harvest]:
        """Clusters, margins and confidences of rows that do not fit in memory, a block at a time."""
        features = self._fitting(X)
        for start, stop in features.blocks():
            codes = self._labeller.label(features.read(start, stop), start, features.names)
            yield self.consensus_.predict_details(codes)

    def _fitting(self, X: Any) -> Features:
        """New features in the order of those that were fitted."""
        check_is_fitted(self)
        return as_features(X).select(self._names)

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write what ``predict`` needs to a Zarr store; for members that assign to the nearest centre."""
        check_is_fitted(self)
        members = self._labeller.members
        if not all(isinstance(member, Linear) for member in members):
            raise InputError(f"base={self.base!r}: only members that assign to the nearest centre can be saved")
        scaling = self._labeller.scaling
        if not isinstance(scaling, Scaling):
            raise InputError(f"scale={self.scale!r}: only models with a named scaling can be saved")
        arrays: dict[str, NDArray[Any]] = {
            "columns": scaling.columns,
            "centre": scaling.centre,
            "spread": scaling.spread,
            "slopes": np.concatenate([member.slopes for member in members]),  # type: ignore[union-attr]
            "intercepts": np.concatenate([member.intercepts for member in members]),  # type: ignore[union-attr]
            "names": np.concatenate([member.names for member in members]),  # type: ignore[union-attr]
            "centres_of": np.array([len(member.names) for member in members]),  # type: ignore[union-attr]
            **{f"consensus_{name}": array for name, array in self.consensus_.to_arrays().items()},
        }
        if scaling.fill is not None:
            arrays["fill"] = scaling.fill
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "random_state"}
        facts = {"parameters": json.loads(json.dumps(parameters)), "members": self.members_}
        save_model(os.fspath(url), arrays, {**facts, "features": list(self._names)}, overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> "ClusterEnsemble":
        """Read a model that :meth:`save` wrote, ready to predict."""
        arrays, facts = load_model(os.fspath(url))
        _refuse_misfits(os.fspath(url), arrays, facts)
        try:
            model = cls(**facts["parameters"])
        except TypeError as error:
            raise StoreError(f"store {url}: parameters of another version ({error}); create it again") from error
        edges = np.cumsum([0, *arrays["centres_of"].tolist()])
        parts: Sequence[slice] = [slice(a, b) for a, b in pairwise(edges)]
        members: tuple[Member, ...] = tuple(
            Linear(arrays["slopes"][part], arrays["intercepts"][part], arrays["names"][part]) for part in parts
        )
        scaling = Scaling(arrays["columns"], arrays["centre"], arrays["spread"], arrays.get("fill"))
        widths = tuple(int(arrays["names"][part].max()) + 1 for part in parts)
        model._labeller, model.members_ = Labeller(scaling, members, widths), facts["members"]
        saved = {name.removeprefix("consensus_"): array for name, array in arrays.items() if "consensus_" in name}
        settings = {name: getattr(model, name) for name in CONSENSUS}
        model.consensus_ = CEHM(model.n_clusters, **settings).from_arrays(saved, os.fspath(url))
        model._name_features([str(name) for name in facts["features"]])
        return model


def _refuse_misfits(url: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """An error if the arrays of a stored model do not fit one another: compiled loops take them as they are."""
    consensus = ("counts", "weights", "lead", "correlation", "values", "values_of")
    needed = {"columns", "centre", "spread", "slopes", "intercepts", "names", "centres_of"}
    if missing := sorted({*needed, *(f"consensus_{name}" for name in consensus)} - arrays.keys()):
        raise StoreError(f"store {url}: lacks {', '.join(missing)}; create it again")
    require(url, facts, {"parameters": dict, "members": list, "features": list})
    columns, names, centres_of = arrays["columns"], arrays["names"], arrays["centres_of"]
    features, centres = columns.size, int(centres_of.sum())
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("columns", "centre", "spread", "fill"), (features,))
    shapes |= {"slopes": (centres, features), "intercepts": (centres,), "names": (centres,)}
    shapes["centres_of"] = (centres_of.size,)
    kinds = dict.fromkeys(("columns", "names", "centres_of"), "iu")
    found = {name: array for name, array in arrays.items() if name in shapes and array.size}
    wrong = [name for name in shapes if name in needed and name not in found]
    wrong += [name for name, array in found.items() if array.shape != shapes[name]]
    wrong += [name for name, array in found.items() if array.dtype.kind not in kinds.get(name, "f")]
    if not wrong and (centres_of.min() < 1 or names.min() < 0 or columns.min() < 0):
        wrong = ["centres_of, names or columns"]
    if wrong or columns.max() >= len(facts["features"]):
        raise StoreError(f"store {url}: {', '.join(wrong) or 'columns'} do not fit: edited or damaged; create it again")
