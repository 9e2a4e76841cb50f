"""``cehm_dask.tl``: consensus of clusterings of the cells of an AnnData, in scanpy's manner.

Top of the flow, beside the commands. Base labels come from columns of ``obs``, or from members made here from an
embedding; the result goes into ``obs`` and ``uns``. Needs ``pip install 'cehm-dask[anndata]'``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data.collections import is_collection
from cehm_dask.doors.observations import by_size, matching
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.estimator import CEHM

ADDED = ("", "_margin", "_confidence")
"""What is added to the key: one column of ``obs`` each."""


def consensus(
    adata: Any,
    *,
    n_clusters: int | Sequence[int] | str,
    keys: str | Sequence[str] | None = None,
    use_rep: str | None = None,
    key_added: str = "consensus",
    random_state: Any = 0,
    copy: bool = False,
    **settings: Any,
) -> Any:
    """Consensus of several clusterings of the same cells.

    Give ``keys`` if the clusterings are there already, or ``use_rep`` to have them made. The matrix is not touched with
    ``keys``, so a backed or Dask-backed AnnData costs no more than its ``obs``.

    Parameters
    ----------
    adata : anndata.AnnData
        In memory, backed, or with Dask arrays.
    n_clusters : int, sequence of int, or "auto"
        Clusters wanted, as in :class:`CEHM`; of several, one is kept. With ``use_rep``, what :class:`ClusterEnsemble`
        takes.
    keys : str or sequence of str, optional
        Columns of ``obs`` with one clustering each: names, or patterns such as ``"leiden_*"``. NaN is a missing label.
    use_rep : str, optional
        Key of ``obsm``, such as ``"X_pca"``, or ``"X"``: members are made from it by :class:`ClusterEnsemble`, without
        scaling unless ``scale`` is given.
    key_added : str, default "consensus"
        Name of what is written.
    random_state : int, RandomState or None, default 0
    copy : bool, default False
        Return a changed copy, and leave ``adata`` as it is.
    settings
        Further parameters of :class:`CEHM` (with ``keys``) or :class:`ClusterEnsemble` (with ``use_rep``).

    Returns
    -------
    AnnData or None
        None, unless ``copy``. These are set:

        ``obs[key_added]`` : categorical
            Cluster of each cell: "0" is the largest. NaN where no member has a label.
        ``obs[key_added + "_margin"]``, ``obs[key_added + "_confidence"]`` : float64
            Lead over the runner-up, and how sure the members are together; see :class:`CEHM`.
        ``uns[key_added]`` : dict
            params, members, n_clusters, sizes, agreement (mean NMI with the members), candidates (one array per
            property), reason (why that candidate was kept) and choice (why that number of clusters). Only types that
            can be written to a file.

    Examples
    --------
    >>> import pandas as pd
    >>> from anndata import AnnData
    >>> import cehm_dask
    >>> obs = pd.DataFrame({"leiden_1": list("aabbbb"), "leiden_2": list("xxyyyy")}, index=list("ABCDEF"))
    >>> adata = AnnData(obs=obs)
    >>> cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=2)
    >>> adata.obs["consensus"].tolist(), adata.uns["consensus"]["sizes"].tolist()
    (['1', '1', '0', '0', '0', '0'], [4, 2])
    """
    if not all(hasattr(adata, name) for name in ("obs", "obsm", "uns", "obs_names")):
        raise InputTypeError(
            f"adata is of type {type(adata).__name__}: expected an AnnData; base labels in other "
            "forms go to cehm_dask.CEHM, features to cehm_dask.ClusterEnsemble"
        )
    if (keys is None) == (use_rep is None):
        raise InputError(
            f"keys={keys!r}, use_rep={use_rep!r}: give one of the two: keys for clusterings that are in "
            "obs, use_rep for an embedding that members are made from"
        )
    adata = adata.copy() if copy else adata
    asked = {"n_clusters": n_clusters, "random_state": random_state, **settings}
    if keys is not None:
        model, members = _of_keys(adata, keys, key_added, asked)
        asked["keys"] = keys
    else:
        model, members = _of_embedding(adata, str(use_rep), asked)
        asked["use_rep"] = use_rep
    _write(adata, key_added, model, {"params": _writable(asked), "members": members})
    return adata if copy else None


def _of_keys(adata: Any, keys: str | Sequence[str], key_added: str, asked: Mapping[str, Any]) -> tuple[CEHM, list[str]]:
    if hasattr(adata.obs, "to_memory"):
        raise InputTypeError("obs is read lazily: load it first, adata.obs = adata.obs.to_memory()")
    chosen = matching(list(map(str, adata.obs.columns)), keys, besides=[key_added + part for part in ADDED])
    return CEHM(**asked).fit(adata.obs[chosen]), chosen


def _of_embedding(adata: Any, use_rep: str, asked: Mapping[str, Any]) -> tuple[CEHM, list[str]]:
    if use_rep != "X" and use_rep not in adata.obsm:
        raise InputError(
            f"use_rep={use_rep!r}: not in obsm, which has {', '.join(adata.obsm) or 'nothing'}; "
            "compute it first, or give 'X'"
        )
    # The scale of an embedding means something: the first components of a PCA are the large ones.
    model = ClusterEnsemble(**{"scale": "none", **asked})
    model.fit(_dense(adata.X if use_rep == "X" else adata.obsm[use_rep]))
    names = [f"{number}: {member['algorithm']}" for number, member in enumerate(model.members_)]
    return model.consensus_, names


class _DenseRows:
    """Rows of a sparse matrix in a file, made dense when they are read."""

    def __init__(self, matrix: Any) -> None:
        self.matrix, self.shape, self.dtype, self.ndim = matrix, matrix.shape, matrix.dtype, 2

    def __getitem__(self, rows: Any) -> Any:
        return self.matrix[rows].toarray()


def _dense(matrix: Any) -> Any:
    """A representation as :class:`ClusterEnsemble` takes it: sparse blocks of files and of Dask arrays made dense."""
    if is_collection(matrix) and hasattr(matrix._meta, "toarray"):
        return matrix.map_blocks(_toarray, dtype=matrix.dtype, meta=np.empty((0, 0), matrix.dtype))
    if hasattr(matrix, "to_memory") and not is_collection(matrix):
        return _DenseRows(matrix)
    return matrix


def _toarray(block: Any) -> Any:
    return block.toarray()


def _write(adata: Any, key: str, model: CEHM, facts: dict[str, Any]) -> None:
    import pandas as pd

    labels, sizes = by_size(np.asarray(model.labels_), model.cluster_sizes_)
    categories = pd.Index([str(number) for number in range(np.count_nonzero(sizes))])
    adata.obs[key] = pd.Categorical.from_codes(labels, categories=categories)
    adata.obs[f"{key}_margin"] = np.asarray(model.margin_)
    adata.obs[f"{key}_confidence"] = np.asarray(model.confidence_)
    adata.uns[key] = {
        **facts,
        "n_clusters": model.n_clusters_,
        "sizes": sizes,
        "agreement": float(model.agreement_),
        "candidates": _columns(model.candidates_),
        "reason": model.candidate_reason_,
        "choice": model.choice_["reason"],
    }


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Records as one array per property; what is unknown is NaN, sizes are largest first."""
    found = {}
    for name in records[0] if records else ():
        values = [record[name] for record in records]
        if name == "sizes":
            values = [sorted(own, reverse=True) for own in values]
        found[name] = np.array([np.nan if value is None else value for value in values])
    return found


def _writable(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a file of AnnData can hold them; None is left out, other objects become text."""
    plain = {name: value for name, value in asked.items() if value is not None}
    return {
        name: value
        if isinstance(value, bool | int | float | str)
        else np.asarray(value)
        if isinstance(value, list | tuple | range | np.ndarray)
        else str(value)
        for name, value in plain.items()
    }
