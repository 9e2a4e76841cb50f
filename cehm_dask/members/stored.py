"""Fitted members as plain arrays, and back: in a saved model beside its consensus, and in an ensemble.zarr.

Below ``ClusterEnsemble``, which saves and loads them, and the making of ensembles, which keeps them. What is read is
checked before compiled loops take it. Nothing is pickled: members that only an object of another library can label
with are not stored.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.attributes import kind_of, place_in, require
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import Ensemble, open_ensemble
from cehm_dask.data.features import Features
from cehm_dask.data.preparation import Encoding
from cehm_dask.data.scaling import SCALES, Scaling
from cehm_dask.data.transformer import CURVES, Transformed, curve_arrays, curve_of
from cehm_dask.errors import InputError, StoreError
from cehm_dask.members.fit import Labeller, Linear, Viewed

Arrays = dict[str, NDArray[Any]]

MIXTURE = ("mixture_shape", "mixture_means", "mixture_precisions", "mixture_weights")
"""Arrays of all mixtures, one after the other; and mixture_view, where they see the features through one."""

NEEDED = ("columns", "centre", "spread", "slopes", "intercepts", "names", "centres_of")


def why_not(labeller: Labeller, scale: Any) -> str | None:
    """Why fitted members cannot be stored, in words; None: they can."""
    if not isinstance(scale, str) or scale not in (*SCALES, *CURVES):
        return f"scale={scale!r}: only named scalings can be stored"
    for j, member in enumerate(labeller.members):
        if not isinstance(member, Linear) and not (isinstance(member, Viewed) and _is_mixture(member.model)):
            name = type(member.model).__name__ if isinstance(member, Viewed) else "a clustering without predict"
            return f"member {j} is {name}: only members that assign to the nearest centre, and mixtures, can be stored"
    return None


def _is_mixture(model: Any) -> bool:
    from sklearn.mixture import GaussianMixture

    return type(model) is GaussianMixture and model.covariance_type == "diag"


def arrays_of(labeller: Labeller, scale: Any) -> Arrays:
    """All numbers that the labels of new rows depend on; refused where :func:`why_not` says so."""
    if (reason := why_not(labeller, scale)) is not None:
        raise InputError(f"these members cannot label rows from a store: {reason}")
    members = [member for member in labeller.members if isinstance(member, Linear)]
    given = labeller.scaling
    scaling = given.plain if isinstance(given, Transformed) else given
    width = len(given.columns)
    arrays: Arrays = {
        "columns": scaling.columns,
        "centre": scaling.centre,
        "spread": scaling.spread,
        "slopes": np.concatenate([np.empty((0, width), np.float32), *(member.slopes for member in members)]),
        "intercepts": np.concatenate([np.empty(0, np.float32), *(member.intercepts for member in members)]),
        "names": np.concatenate([np.empty(0, np.int64), *(member.names for member in members)]),
        "centres_of": np.array([len(member.names) if isinstance(member, Linear) else 0 for member in labeller.members]),
        **_mixture_arrays([member for member in labeller.members if isinstance(member, Viewed)]),
    }
    if scaling.fill is not None:
        arrays["fill"] = scaling.fill
    if isinstance(given, Transformed) and given.passed is not None:
        arrays |= {"passed": given.passed, **curve_arrays(scale, given.model)}
    return arrays


def _mixture_arrays(members: Sequence[Viewed]) -> Arrays:
    if not members:
        return {}
    models = [member.model for member in members]
    parts: dict[str, list[NDArray[Any]]] = {
        "mixture_means": [model.means_.ravel() for model in models],
        "mixture_precisions": [model.precisions_cholesky_.ravel() for model in models],
        "mixture_weights": [model.weights_ for model in models],
    }
    if (views := [member.view.ravel() for member in members if member.view is not None]) != []:
        parts["mixture_view"] = views
    shapes = np.array([model.means_.shape for model in models])
    return {"mixture_shape": shapes, **{name: np.concatenate(own) for name, own in parts.items()}}


def labeller_of(arrays: Mapping[str, NDArray[Any]], scale: str) -> Labeller:
    """What :func:`arrays_of` gave, ready to label."""
    edges = np.cumsum([0, *arrays["centres_of"].tolist()])
    parts = [slice(a, b) for a, b in pairwise(edges)]
    mixtures = iter(_mixtures(arrays))
    members = tuple(
        Linear(arrays["slopes"][part], arrays["intercepts"][part], arrays["names"][part])
        if part.start < part.stop
        else next(mixtures)
        for part in parts
    )
    scaling: Any = Scaling(arrays["columns"], arrays["centre"], arrays["spread"], arrays.get("fill"))
    if "passed" in arrays:
        scaling = Transformed(curve_of(scale, arrays), scaling, np.arange(scaling.columns.size), arrays["passed"])
    widths = [
        int(one.names.max()) + 1 if isinstance(one, Linear) else int(one.model.n_components)
        for one in members
        if isinstance(one, Linear | Viewed)
    ]
    return Labeller(scaling, members, tuple(widths))


def _mixtures(arrays: Mapping[str, NDArray[Any]]) -> list[Viewed]:
    shapes = arrays.get("mixture_shape", np.empty((0, 2), np.int64)).tolist()
    if not shapes:
        return []
    from sklearn.mixture import GaussianMixture

    cells = np.cumsum([0, *(k * d for k, d in shapes)])
    rows = np.cumsum([0, *(k for k, _ in shapes)])
    views: list[NDArray[Any] | None] = [None] * len(shapes)
    if "mixture_view" in arrays:
        columns = np.cumsum([0, *(d for _, d in shapes)]) * arrays["slopes"].shape[1]
        views = [
            arrays["mixture_view"][a:b].reshape(-1, d) for (a, b), (_, d) in zip(pairwise(columns), shapes, strict=True)
        ]
    found = []
    for place, (k, d) in enumerate(shapes):
        model = GaussianMixture(k, covariance_type="diag")
        own = slice(cells[place], cells[place + 1])
        model.means_ = arrays["mixture_means"][own].reshape(k, d)
        model.precisions_cholesky_ = arrays["mixture_precisions"][own].reshape(k, d)
        model.weights_ = arrays["mixture_weights"][rows[place] : rows[place + 1]]
        model.n_features_in_ = d
        found.append(Viewed(model, views[place]))
    return found


def encoding_of(url: str, facts: Mapping[str, Any]) -> Encoding | None:
    """How the columns of a table became the features of a stored model; stores of earlier versions do not say."""
    if facts.get("encoding") is None:
        return None
    try:
        encoding = Encoding.from_facts(facts["encoding"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"store {url}: the encoding of its columns is damaged ({error}); create it again") from error
    if list(encoding.names) != facts["features"]:
        raise StoreError(f"store {url}: the encoding of its columns does not fit its features; create it again")
    return encoding


def refuse_misfits(url: str, arrays: Mapping[str, NDArray[Any]], scale: str, n_features: int) -> None:
    """An error if the arrays of stored members do not fit one another: compiled loops take them as they are."""
    if missing := sorted({*NEEDED} - arrays.keys()):
        raise StoreError(f"store {url}: lacks {', '.join(missing)}; create it again")
    columns, names, centres_of = arrays["columns"], arrays["names"], arrays["centres_of"]
    features, centres = columns.size, int(centres_of.sum())
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("columns", "centre", "spread", "fill"), (features,))
    shapes |= {"slopes": (centres, features), "intercepts": (centres,), "names": (centres,)}
    shapes["centres_of"] = (centres_of.size,)
    shapes |= _mixture_shapes(arrays, features)
    kinds = dict.fromkeys(("columns", "names", "centres_of", "mixture_shape"), "iu")
    found = {name: array for name, array in arrays.items() if name in shapes}
    wrong = [name for name in ("columns", "centres_of") if not arrays[name].size]
    wrong += [name for name in shapes if name.startswith("mixture") and name not in found]
    wrong += [name for name, array in found.items() if array.shape != shapes[name]]
    wrong += [name for name, array in found.items() if array.dtype.kind not in kinds.get(name, "f")]
    if not wrong and (centres_of.min() < 0 or names.min(initial=0) < 0 or columns.min() < 0):
        wrong = ["centres_of, names or columns"]
    if not wrong and int(np.count_nonzero(centres_of == 0)) != len(arrays.get("mixture_shape", ())):
        wrong = ["centres_of or mixture_shape"]
    wrong += _misfits_of_curve(arrays, scale, features)
    if wrong or columns.max() >= n_features:
        raise StoreError(f"store {url}: {', '.join(wrong) or 'columns'} do not fit: edited or damaged; create it again")


def _mixture_shapes(arrays: Mapping[str, NDArray[Any]], features: int) -> dict[str, tuple[int, ...]]:
    """What the arrays of mixtures must be like; none, where there are no mixtures."""
    given = arrays.get("mixture_shape")
    if given is None:
        return {}
    if given.ndim != 2 or given.shape[1:] != (2,) or given.dtype.kind not in "iu" or given.min(initial=1) < 1:
        return {"mixture_shape": (-1, 2)}
    cells, rows = (int(given.prod(axis=1).sum()),), (int(given[:, 0].sum()),)
    shapes: dict[str, tuple[int, ...]] = dict(zip(MIXTURE, (given.shape, cells, cells, rows), strict=True))
    if "mixture_view" in arrays:
        return {**shapes, "mixture_view": (int(given[:, 1].sum()) * features,)}
    return shapes if (given[:, 1] == features).all() else {"mixture_shape": (-1, features)}


def _misfits_of_curve(arrays: Mapping[str, NDArray[Any]], scale: str, features: int) -> list[str]:
    """Arrays of a named transformer that are missing or do not fit the number of columns."""
    if scale not in CURVES or "passed" not in arrays:  # without: all columns are 0 and 1 of categories
        return []
    passed = arrays["passed"]
    if passed.ndim != 1 or passed.dtype.kind not in "iu" or not np.isin(passed, np.arange(features)).all():
        return ["passed"]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("curve_centre", "curve_spread"), (features - passed.size,))
    if scale != "log":
        count = arrays.get("curve_references", np.empty(0)).size
        shapes |= {"curve_references": (count,), "curve_quantiles": (count, features - passed.size)}
    return [name for name, shape in shapes.items() if name not in arrays or arrays[name].shape != shape]


# --- in an ensemble ------------------------------------------------------------------------------------------------


def fitted_of(labeller: Labeller, features: Features, scale: Any) -> tuple[Arrays, dict[str, Any]]:
    """What an ensemble.zarr keeps of the members it was made by: arrays, and what new rows are read by.

    Without arrays, the facts say why not.
    """
    if (reason := why_not(labeller, scale)) is not None:
        return {}, {"why_not": reason}
    facts = {"scale": scale, "features": list(features.names), "prepared": features.prepared.facts()}
    encoding = None if features.encoding is None else features.encoding.facts()
    return arrays_of(labeller, scale), {**facts, "encoding": encoding}


def read_fitted(ensemble: Ensemble) -> tuple[Labeller, dict[str, Any]]:
    """The members that an ensemble.zarr was made by, ready to label, and what new rows are read by; or why not."""
    url = ensemble.url
    arrays, facts = ensemble.fitted()
    if not arrays:
        reason = facts.get("why_not", "their base labels were brought, or an earlier version made them")
        raise InputError(
            f"{url} does not hold its fitted members ({reason}): give base labels of the new rows, or make the "
            "ensemble again"
        )
    require(url, facts, {"scale": str, "features": list, "prepared": dict})
    if missing := sorted({"scale", "features", "prepared"} - facts.keys()):
        raise StoreError(f"store {url}: its fitted members lack {', '.join(missing)}; create it again")
    listed, text = (list, type(None)), (str, type(None))
    kinds = {"columns": listed, "drop": listed, "id": text, "categories": text, "dates": text}
    require(url, facts["prepared"], kinds)
    facts["prepared"] = {name: facts["prepared"].get(name) for name in kinds}
    refuse_misfits(url, arrays, facts["scale"], len(facts["features"]))
    labeller = labeller_of(arrays, facts["scale"])
    if tuple(width + 1 for width in labeller.widths) != ensemble.widths:
        raise StoreError(f"store {url}: its fitted members are not those of its labels; create it again")
    return labeller, facts


def is_run(url: str) -> bool:
    """Whether a place is a run directory that has come to a consensus."""
    return kind_of(url) == "other" and kind_of(place_in(url, "consensus.zarr")) == "consensus"


def fitted_of_run(url: str) -> tuple[Labeller, list[dict[str, Any]], dict[str, Any]]:
    """:func:`read_fitted` of a run directory, with each member's provenance; refused if its parts do not fit."""
    ensemble = open_ensemble(place_in(url, "ensemble.zarr"))
    made_of = open_consensus(place_in(url, "consensus.zarr")).facts["identity"].get("labels")
    if made_of != ensemble.fingerprint:
        raise StoreError(f"run {url}: its consensus is of another ensemble ({made_of}): run the recipe again")
    labeller, facts = read_fitted(ensemble)
    return labeller, [dict(member) for member in ensemble.members], facts
