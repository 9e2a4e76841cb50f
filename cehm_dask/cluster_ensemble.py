"""``ClusterEnsemble``: features in, consensus out, by scikit-learn's conventions.

Beside ``CEHM``, for users who have features and no base labels: makes the members, then their
consensus, and keeps the fitted members so that new rows can be labelled. Saved without pickle.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cehm_dask.clusters.current import client_of
from cehm_dask.data.attributes import place_in, require
from cehm_dask.data.collections import is_collection
from cehm_dask.data.features import Features, as_features
from cehm_dask.data.model_store import load_model, save_model
from cehm_dask.data.names import are_names
from cehm_dask.data.preparation import Encoding, Preparation, warn_of_unseen
from cehm_dask.data.transformer import warn_of_tails
from cehm_dask.engine.collection import Held
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputTypeError, StoreError
from cehm_dask.estimator import CEHM
from cehm_dask.job import Where, machine_of
from cehm_dask.lazy import like
from cehm_dask.machine import cores
from cehm_dask.members.collection import base_labels_of, features_on, label_lazily, stored_labels_of
from cehm_dask.members.fit import Labeller, MemberPlan, k_range, plan_members
from cehm_dask.members.generate import generate, label_all, make_labeller, makers
from cehm_dask.members.stored import arrays_of, encoding_of, fitted_of_run, is_run, labeller_of, refuse_misfits
from cehm_dask.method.params import made_for
from cehm_dask.method.rounds import Harvest
from cehm_dask.notebook import ShowsClusters, shown
from cehm_dask.profiles.profile import Profile
from cehm_dask.profiles.sweep import profile_found
from cehm_dask.progress import Progress, ProgressLike

CONSENSUS = ("variant", "tries", "restarts", "choose", "max_iter")
"""Parameters handed on to the consensus."""

OF_THE_CONSENSUS = (
    *("n_clusters_", "n_iter_", "agreement_", "scan_", "choice_"),
    *("candidates_", "candidate_reason_", "cluster_sizes_"),
)
"""Attributes taken over from it."""

PREPARING = ("columns", "drop", "id", "categories", "dates")
"""Parameters of how the columns of a table are read."""

DRAWN = ("base", "subspace", "projection", "bootstrap", "subsample")
"""Parameters of what members see."""

FITTING = ("scale", "impute", "fit_rows", "full_lloyd")
"""Parameters of how members are fitted."""


class ClusterEnsemble(ShowsClusters, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Many clusterings of the same features, and their consensus.

    Parameters
    ----------
    n_clusters : int, a sequence of int, or "auto"
        Clusters wanted; of several, the number that the members single out is kept, see :class:`CEHM`. Members are
        made for the largest. "auto" looks at 2 to 30; members are then made as for k = 20, or √n if that is less.
    members : int, default 30
        Base clusterings to make.
    base : {"kmeans", "minibatch", "mixture", "birch", "dask-ml"}, an estimator, or a sequence of these
        How members cluster; of several, members take turns. An estimator needs ``predict``, or ``fit_predict`` if
        members are fitted on all rows. Kinds with a name can be saved, estimators only if they assign to the nearest
        of their centres.
    scale : {"none", "standard", "minmax", "robust", "log", "quantile", "rank"} or a transformer, default "standard"
        The last three draw heavy tails in: logarithms, a normal distribution, or ranks, then standardized. Columns
        of 0 and 1 that stand for a category are not scaled by any of these names. A transformer has ``fit`` and
        ``transform``; a copy of it is fitted on the rows that members are fitted on. One of dask-ml is fitted on all
        rows of a dask collection, where they lie.
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
    subsample : float, optional
        Share of the rows, such as 0.8, that each member is fitted on and labels; rows are drawn one by one, so the
        share is met on average. The others are missing labels of that member. New rows are labelled by all members.
    impute : {"mean", "median", "most_frequent"}, optional
        What takes the place of values that are missing or not finite, of their column (median and most frequent value
        of the rows that members are fitted on); None refuses them.
    columns, drop : str or list of str, optional
        Columns of a table that are features, and that are not; default: all are.
    id : str, optional
        Column of a table that names the rows; no feature.
    categories : {"one-hot", "ordinal", "drop"}, optional
        How text and categories are read: a column of 0 and 1 for each value (at most 50), or ranks in the order of the
        category or the alphabet. New rows with a value that was not fitted have 0 everywhere, or a missing rank.
        Default: one-hot, with a warning that says so.
    dates : {"days", "drop"}, optional
        Whether dates become days since 1970; None refuses them.
    variant, tries, restarts, choose, max_iter
        Of the consensus, as in :class:`CEHM`.
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_, margin_, confidence_
        Cluster of each sample, how far it leads, and how sure the members are.
    feature_names_in_ : (n_features,) str
        Names of the features, where they have any; columns of new data are matched by them.
    encoded_names_ : tuple of str
        Names of the numbers that they became: ``colour=red`` for one value of a category.
    members_ : list of dict
        Algorithm, parameters, seed and seconds of each member.
    base_labels_ : (n_samples, members) unsigned
        Labels of the members, from 1; 0 is a missing one, so ``base_labels_.astype(int) - 1`` is what CEHM takes.
    consensus_ : CEHM
        The fitted consensus.
    n_clusters_, n_iter_, agreement_, scan_, choice_, candidates_, candidate_reason_, cluster_sizes_
        Of the consensus, as in :class:`CEHM`.
    profile_ : pandas.DataFrame
        Mean, spread, quantiles and effect of every feature in every cluster; see :meth:`profile`. Computed from X when
        first asked for, and X is kept until then; not for a dask collection, nor after pickling.

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
        n_clusters: int | Sequence[int] | str,
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
        subsample: float | None = None,
        impute: str | None = None,
        columns: Any = None,
        drop: Any = None,
        id: str | None = None,
        categories: str | None = None,
        dates: str | None = None,
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
        self.subsample = subsample
        self.impute = impute
        self.columns = columns
        self.drop = drop
        self.id = id
        self.categories = categories
        self.dates = dates
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
        progress: ProgressLike | bool | None = None,
    ) -> Self:
        """Make the members and their consensus.

        Parameters
        ----------
        X : (n_samples, n_features) numbers, dask array, data frame, Arrow table, sparse matrix, path or URL
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
        progress : bool, callable (Event) or Progress, optional
            True: shown in the notebook or on the terminal. A function gets every finished round of the consensus; a
            ``Progress`` also the members fitted and the rows done.
        """
        if isinstance(self.n_clusters, str) and self.n_clusters != "auto":
            raise InputTypeError(f"n_clusters={self.n_clusters!r}: expected a whole number, several, or 'auto'")
        seed = int(check_random_state(self.random_state).randint(2**31))
        settings = {name: getattr(self, name) for name in CONSENSUS}
        self.consensus_ = CEHM(self.n_clusters, random_state=seed, **settings)
        with shown(progress) as told, client_of(client) as who:
            machine = machine_of(Where(memory=memory, client=who))
            features = features_on(X, who, machine, self._preparation())
            where = Where(memory, client=who, output=None if output is None else os.fspath(output), overwrite=overwrite)
            held = self._make(features, seed, where, told)
            self._name_features(features.names, features.encoding)
            rows = None if features.chunks is None else features.chunks.given_rows
            del features  # its rows are not needed for the consensus
            self.consensus_.fit(held, memory=memory, client=False if who is None else who, progress=told)
        warn_of_tails(self.consensus_.cluster_sizes_, self.scale)
        self.labels_ = like(X, self.consensus_.labels_, "labels", rows)
        self.margin_ = like(X, self.consensus_.margin_, "margin", rows)
        self.confidence_ = like(X, self.consensus_.confidence_, "confidence", rows)
        for name in OF_THE_CONSENSUS:
            setattr(self, name, getattr(self.consensus_, name))
        self.__dict__.pop("_profile", None)  # of an earlier fit
        self._to_profile = None if is_collection(X) else X
        return self

    @property
    def profile_(self) -> Any:
        check_is_fitted(self)
        if "_profile" not in self.__dict__:
            if self.__dict__.get("_to_profile") is None:
                raise AttributeError("profile_: the features are not kept here; call profile(X).frame() with them")
            self._profile = self.profile(self._to_profile).frame()
            self._to_profile = None
        return self._profile

    def profile(self, X: Any, *, memory: str | int | None = None, client: Any = None) -> Profile:
        """Who the clusters are, by the features that were fitted or any others of the same rows.

        One sweep over X; ``frame()`` of the result is a data frame, ``sentences`` has one per cluster. Columns of
        texts are encoded as for the fit; as categories they are described by :func:`cehm_dask.profile`.
        """
        check_is_fitted(self, "labels_")
        with client_of(client) as who:
            where = Where(memory=memory, client=who)
            features = features_on(X, who, machine_of(where), self._preparation())
            return profile_found(features, where, self.labels_, self.margin_, self.confidence_)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_to_profile"}

    def _make(self, features: Features, seed: int, where: Where, progress: Progress) -> Held:
        """Make the members and their labels; the latter as the consensus takes them."""
        plans = self._plans(features.n_samples, seed)
        fitting: dict[str, Any] = {name: getattr(self, name) for name in FITTING}
        with makers(features, len(plans), where.client, where.memory, fit_rows=self.fit_rows) as who:
            made = make_labeller(features, plans, seed, who, progress=progress, **fitting)
            self._labeller, self.members_ = replace(made[0], subsample=None), made[1]  # new rows are labelled by all
            if where.output is None:
                held, self.base_labels_ = base_labels_of(features, made[0], who, where.client, machine_of(where))
                return held
        how: dict[str, Any] = {"memory": where.memory, "client": where.client or False, "overwrite": where.overwrite}
        generate(features, where.output, plans, seed, made=made, progress=progress, **how, **fitting)
        held, self.base_labels_ = stored_labels_of(features, made[0], where.output)
        return held

    def _plans(self, n_samples: int, seed: int) -> list[MemberPlan]:
        low, high = k_range(made_for(self.n_clusters, n_samples), n_samples)
        low, high = self.k_min or low, self.k_max or max(high, self.k_min or 0)
        drawn = {name: getattr(self, name) for name in DRAWN}
        return plan_members(self.members, low, high, seed, **drawn)

    def _preparation(self) -> Preparation:
        return Preparation.of(**{name: getattr(self, name) for name in PREPARING})

    def _name_features(self, names: Sequence[str], encoding: Encoding | None) -> None:
        self.encoded_names_, self._encoding = tuple(names), encoding
        given = names if encoding is None else encoding.sources
        self.n_features_in_ = len(given)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if are_names(given):
            self.feature_names_in_ = np.array(given, object)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Cluster of new rows: the fitted members label them, then the consensus does.

        A dask array or data frame gives one, computed when asked for.
        """
        check_is_fitted(self)
        return cast(NDArray[np.int64], like(X, self.consensus_.predict(self._codes(X)), "labels"))

    def membership(self, X: Any) -> NDArray[np.float64]:
        """Confidence of rows in every cluster, (n_samples, n_clusters): each row sums to 1."""
        check_is_fitted(self)
        found = self.consensus_.membership(self._codes(X))
        return cast(NDArray[np.float64], like(X, found, "membership"))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """:meth:`membership`, so that clusters can be features of a further step of a pipeline."""
        return self.membership(X)

    @property
    def _n_features_out(self) -> int:
        return int(self.consensus_.n_clusters_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.impute is not None
        tags.input_tags.sparse = True
        return tags

    def _codes(self, X: Any) -> Any:
        """Labels of the fitted members for rows; of a dask collection lazily."""
        if is_collection(X):
            again = self._preparation().again(self._encoding)
            return label_lazily(X, self._labeller, self.encoded_names_, again)
        with workers(cores()) as pool:
            return label_all(self._fitting(X), self._labeller, pool)

    def predict_blocks(self, X: Any) -> Iterator[Harvest]:
        """Clusters, margins and confidences of rows that do not fit in memory, a block at a time."""
        unseen: Counter[str] = Counter()
        features = self._fitting(X, unseen)
        for start, stop in features.blocks():
            codes = self._labeller.label(features.read(start, stop), start, features.names)
            yield self.consensus_.predict_details(codes)
        warn_of_unseen(unseen)

    def _fitting(self, X: Any, unseen: Counter[str] | None = None) -> Features:
        """New features in the order of those that were fitted."""
        check_is_fitted(self)
        return as_features(X, self._preparation().again(self._encoding, unseen)).select(self.encoded_names_)

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write what ``predict`` needs to a Zarr store; for all members that ``base`` has names for."""
        check_is_fitted(self)
        arrays = arrays_of(self._labeller, self.scale)
        arrays |= {f"consensus_{name}": array for name, array in self.consensus_.to_arrays().items()}
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "random_state"}
        facts = {"parameters": json.loads(json.dumps(parameters)), "members": self.members_}
        facts["encoding"] = None if self._encoding is None else self._encoding.facts()
        save_model(os.fspath(url), arrays, {**facts, "features": list(self.encoded_names_)}, overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> "ClusterEnsemble":
        """Read a model that :meth:`save` wrote, or that of a run directory, ready to predict."""
        place = os.fspath(url)
        if is_run(place):
            return cls._of_run(place)
        arrays, facts = load_model(place)
        require(place, facts, {"parameters": dict, "members": list, "features": list})
        refuse_misfits(place, arrays, str(facts["parameters"].get("scale")), len(facts["features"]))
        try:
            model = cls(**facts["parameters"])
        except TypeError as error:
            raise StoreError(f"store {url}: parameters of another version ({error}); create it again") from error
        saved = {name.removeprefix("consensus_"): array for name, array in arrays.items() if "consensus_" in name}
        settings = {name: getattr(model, name) for name in CONSENSUS}
        consensus = CEHM(model.n_clusters, **settings).from_arrays(saved, place)
        return model._take_up(consensus, labeller_of(arrays, model.scale), facts["members"], place, facts)

    @classmethod
    def _of_run(cls, url: str) -> "ClusterEnsemble":
        """The model of a run that began with features: the members in its ensemble, and its consensus."""
        labeller, members, facts = fitted_of_run(url)
        consensus = CEHM.load(place_in(url, "consensus.zarr")).counted_from_one()
        model = cls(consensus.n_clusters, len(members), scale=facts["scale"], **facts["prepared"])
        return model._take_up(consensus, labeller, members, url, facts)

    def _take_up(self, consensus: CEHM, labeller: Labeller, members: Any, url: str, facts: Mapping[str, Any]) -> Self:
        self.consensus_, self._labeller, self.members_ = consensus, labeller, members
        self._name_features([str(name) for name in facts["features"]], encoding_of(url, facts))
        return self
