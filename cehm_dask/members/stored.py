"""Fitted members as plain arrays, and back: what a saved model holds beside its consensus.

Below ``ClusterEnsemble``, which saves and loads them. What is read is checked before compiled loops take it.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.attributes import require
from cehm_dask.data.preparation import Encoding
from cehm_dask.data.scaling import SCALES, Scaling
from cehm_dask.data.transformer import CURVES, Transformed, curve_arrays, curve_of
from cehm_dask.errors import InputError, StoreError
from cehm_dask.members.fit import BASES, Labeller, Linear, Member, Viewed
from cehm_dask.members.mixtures import MIXTURE, is_mixture, misfits_of_mixtures, mixture_arrays, mixtures_of


def arrays_of(labeller: Labeller, base: Any, scale: Any) -> dict[str, NDArray[Any]]:
    """Members of a kind with a name, or with centres, and with a named scaling."""
    members = [member for member in labeller.members if isinstance(member, Linear)]
    mixtures = [member for member in labeller.members if is_mixture(member)]
    if len(members) + len(mixtures) < len(labeller.members):
        raise InputError(
            f"base={base!r}: only members that assign to the nearest centre, and mixtures, can be saved; "
            f"use one of {', '.join(map(repr, BASES))}, or keep the model in this process"
        )
    if scale not in (*SCALES, *CURVES):
        raise InputError(f"scale={scale!r}: only models with a named scaling can be saved")
    given = labeller.scaling
    scaling = given.plain if isinstance(given, Transformed) else given
    arrays: dict[str, NDArray[Any]] = {
        "columns": scaling.columns,
        "centre": scaling.centre,
        "spread": scaling.spread,
    }
    if members:
        arrays |= {
            "slopes": np.concatenate([member.slopes for member in members]),
            "intercepts": np.concatenate([member.intercepts for member in members]),
            "names": np.concatenate([member.names for member in members]),
            "centres_of": np.array([len(member.names) for member in members]),
        }
    if mixtures:
        places = [place for place, member in enumerate(labeller.members) if is_mixture(member)]
        arrays |= mixture_arrays(cast(list[Viewed], mixtures), places)
    if scaling.fill is not None:
        arrays["fill"] = scaling.fill
    if isinstance(given, Transformed) and given.passed is not None:
        arrays |= {"passed": given.passed, **curve_arrays(scale, given.model)}
    return arrays


def labeller_of(arrays: Mapping[str, NDArray[Any]], scale: str) -> Labeller:
    """What :func:`arrays_of` gave, ready to label."""
    edges = np.cumsum([0, *arrays.get("centres_of", np.empty(0, int)).tolist()])
    parts = [slice(a, b) for a, b in pairwise(edges)]
    members: list[Member] = [
        Linear(arrays["slopes"][part], arrays["intercepts"][part], arrays["names"][part]) for part in parts
    ]
    widths = [int(arrays["names"][part].max()) + 1 for part in parts]
    for place, mixture in mixtures_of(arrays):  # ascending, so that each finds those before it in place
        members.insert(place, mixture)
        widths.insert(place, mixture.model.n_components)
    scaling: Any = Scaling(arrays["columns"], arrays["centre"], arrays["spread"], arrays.get("fill"))
    if "passed" in arrays:
        scaling = Transformed(curve_of(scale, arrays), scaling, np.arange(scaling.columns.size), arrays["passed"])
    return Labeller(scaling, tuple(members), tuple(widths))


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


def refuse_misfits(url: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """An error if the arrays of a stored model do not fit one another: compiled loops take them as they are."""
    consensus = ("counts", "weights", "lead", "correlation", "values", "values_of")
    needed = {"columns", "centre", "spread"}
    if MIXTURE not in arrays or "slopes" in arrays:
        needed |= {"slopes", "intercepts", "names", "centres_of"}
    if missing := sorted({*needed, *(f"consensus_{name}" for name in consensus)} - arrays.keys()):
        raise StoreError(f"store {url}: lacks {', '.join(missing)}; create it again")
    require(url, facts, {"parameters": dict, "members": list, "features": list})
    none = np.ones(1, int)
    columns, names, centres_of = arrays["columns"], arrays.get("names", none), arrays.get("centres_of", none)
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
    wrong += misfits_of_mixtures(arrays, features, centres_of.size if "centres_of" in arrays else 0)
    wrong += _misfits_of_curve(arrays, str(facts["parameters"].get("scale")), features)
    if wrong or columns.max() >= len(facts["features"]):
        raise StoreError(f"store {url}: {', '.join(wrong) or 'columns'} do not fit: edited or damaged; create it again")


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
