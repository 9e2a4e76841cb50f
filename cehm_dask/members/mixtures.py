"""Fitted Gaussian mixtures as plain arrays, and back: weights, means and precisions of all components.

Beside ``stored``. A mixture that was read labels rows by the same code of scikit-learn as the one that was fitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.members.fit import Viewed

MIXTURE = "mixture_places"
"""The array that says which members are mixtures."""


def is_mixture(member: Any) -> bool:
    """Whether a member is a mixture whose features are independent inside a component, as those made by name are."""
    from sklearn.mixture import GaussianMixture

    return (
        isinstance(member, Viewed) and type(member.model) is GaussianMixture and member.model.covariance_type == "diag"
    )


def mixture_arrays(members: Sequence[Viewed], places: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Of the mixtures among the members, in their order; all see as many features."""
    models = [member.model for member in members]
    arrays: dict[str, NDArray[Any]] = {
        MIXTURE: np.array(places),
        "mixture_sizes": np.array([len(model.weights_) for model in models]),
        "mixture_weights": np.concatenate([model.weights_ for model in models]),
        "mixture_means": np.concatenate([model.means_ for model in models]),
        "mixture_precisions": np.concatenate([model.precisions_cholesky_ for model in models]),
    }
    views = [member.view for member in members if member.view is not None]
    return arrays | ({"mixture_views": np.stack(views)} if views else {})


def mixtures_of(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, Viewed]]:
    """What :func:`mixture_arrays` gave, ready to label, each with its place among the members."""
    if MIXTURE not in arrays:
        return
    from sklearn.mixture import GaussianMixture

    edges = np.cumsum([0, *arrays["mixture_sizes"].tolist()])
    for number, (a, b) in enumerate(pairwise(edges)):
        model = GaussianMixture(b - a, covariance_type="diag")
        model.weights_, model.means_ = arrays["mixture_weights"][a:b], arrays["mixture_means"][a:b]
        model.precisions_cholesky_ = arrays["mixture_precisions"][a:b]
        model.precisions_ = model.precisions_cholesky_**2
        model.covariances_ = 1 / model.precisions_
        model.n_features_in_ = model.means_.shape[1]
        view = arrays["mixture_views"][number] if "mixture_views" in arrays else None
        yield int(arrays[MIXTURE][number]), Viewed(model, view)


def misfits_of_mixtures(arrays: Mapping[str, NDArray[Any]], features: int, n_others: int) -> list[str]:
    """Arrays of mixtures that are missing or do not fit one another; ``n_others`` are the other members."""
    if MIXTURE not in arrays:
        return []
    places, sizes = arrays[MIXTURE], arrays.get("mixture_sizes", np.empty(0, int))
    if places.dtype.kind not in "iu" or sizes.dtype.kind not in "iu" or places.shape != sizes.shape or not sizes.size:
        return ["mixture_sizes"]
    known = np.isin(places, np.arange(n_others + places.size)).all() and (np.diff(places) > 0).all()
    if not known or places.ndim != 1 or sizes.min() < 1:
        return [MIXTURE]
    views = arrays.get("mixture_views")
    seen = features if views is None else views.shape[-1]
    count = int(sizes.sum())
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("mixture_means", "mixture_precisions"), (count, seen))
    shapes["mixture_weights"] = (count,)
    if views is not None:
        shapes["mixture_views"] = (places.size, features, seen)
    found = {name: arrays.get(name) for name in shapes}
    return [
        name
        for name, array in found.items()
        if array is None or array.shape != shapes[name] or array.dtype.kind != "f" or not np.isfinite(array).all()
    ]
