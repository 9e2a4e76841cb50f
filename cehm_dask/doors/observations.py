"""The observations (``obs``) of an AnnData, in memory or in a file: columns of labels in, numbers of clusters out.

Between AnnData and the consensus. Of a file, only the columns that were asked for and the names of the observations are
read, by anndata's own reader of elements; the matrix never is. Needs ``pip install 'cehm-dask[anndata]'``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrays import is_store, open_group
from cehm_dask.data.files import exists
from cehm_dask.errors import InputError, MissingExtraError, NotFoundError
from cehm_dask.results.export import BLOCK_ROWS, RowIds
from cehm_dask.wording import option

SUFFIX = ".h5ad"
LISTED = 20
"""Names of columns in an error."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Columns of labels of a file, and the names of the rows."""

    frame: Any
    """A pandas data frame; its index holds the names."""

    @property
    def ids(self) -> RowIds:
        """The names, as an output has them."""
        names = self.frame.index
        starts = range(0, len(names), BLOCK_ROWS)
        return RowIds(
            str(names.name or "obs_names"), lambda: (names[start : start + BLOCK_ROWS].to_numpy() for start in starts)
        )


def matching(names: Sequence[str], keys: str | Sequence[str], *, besides: Sequence[str] = ()) -> list[str]:
    """The columns that keys name, in the order of the keys; a key is a name or a pattern.

    Parameters
    ----------
    names : sequence of str
        Of the columns of ``obs``.
    keys : str or sequence of str
        Names, or patterns such as ``"leiden_*"``.
    besides : sequence of str
        Columns that are no members whatever their names: those that the result will have.

    Examples
    --------
    >>> matching(["n_genes", "leiden_1", "leiden_0.5"], "leiden_*")
    ['leiden_1', 'leiden_0.5']
    """
    there = [name for name in names if name not in besides]
    found: list[str] = []
    for key in [keys] if isinstance(keys, str) else keys:
        own = [key] if key in there else [name for name in there if fnmatchcase(name, key)]
        if not own:
            raise InputError(f"{option('keys', key)}: no column of obs is called so; there are {_listed(there)}")
        found += [name for name in own if name not in found]
    if not found:
        raise InputError(f"keys=[]: name at least one column of obs; there are {_listed(there)}")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


def is_annotated(path: str) -> bool:
    """Whether a file or store holds an AnnData: by its ending, or by what the store says of itself."""
    if path.endswith(SUFFIX):
        return True
    group = open_group(path) if is_store(path) else None
    return group is not None and ("obs" in group and group.attrs.get("encoding-type") in ("anndata", None))


def read_observations(path: str, keys: str | Sequence[str]) -> Observations:
    """The columns that keys name, of a .h5ad file or an AnnData's Zarr store (path or URL)."""
    import pandas as pd

    try:
        from anndata.io import read_elem
    except ImportError as error:
        raise MissingExtraError(f"{path} needs an extra package: pip install 'cehm-dask[anndata]'") from error
    with _opened(path) as root:
        obs = root["obs"]
        if not hasattr(obs, "keys"):
            raise InputError(
                f"{path}: written by anndata before 0.7: read it with anndata.read_h5ad, and write it again"
            )
        if not keys:
            raise InputError(
                f"{path} is an AnnData: say which columns of obs are the members ({option('keys', 'NAME')}); there are "
                f"{_listed(_columns(obs))}"
            )
        chosen = matching(_columns(obs), keys)
        index = pd.Index(np.asarray(read_elem(obs[obs.attrs["_index"]])), name=_index_name(obs))
        return Observations(pd.DataFrame({name: read_elem(obs[name]) for name in chosen}).set_axis(index))


def _columns(obs: Any) -> list[str]:
    return [str(name) for name in obs.attrs["column-order"]]


def _index_name(obs: Any) -> str | None:
    name = str(obs.attrs["_index"])
    return None if name in ("_index", "index") else name


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """The root group of a file or store."""
    if not path.endswith(SUFFIX):
        yield open_group(path)
        return
    import fsspec
    import h5py

    if not exists(path):
        raise NotFoundError(f"{path}: no such file")
    with fsspec.open(path, "rb") as file:
        try:
            root = h5py.File(file, "r")
        except OSError as error:
            raise InputError(f"{path}: no .h5ad file, or a damaged one ({error})") from error
        with root:
            if "obs" not in root:
                raise InputError(f"{path}: holds no obs: it is no AnnData")
            yield root


def by_size(labels: NDArray[Any], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Labels with clusters numbered by size, the largest first, and the sizes in that order; -1 stays.

    Of equally large ones, the lower number comes first.

    >>> by_size(np.array([1, 1, 0, -1, 2, 2]), np.array([1, 2, 2]))[0].tolist()
    [0, 0, 2, -1, 1, 1]
    """
    order = np.argsort(-sizes, kind="stable")
    number = np.empty(len(sizes) + 1, np.int16)
    number[order] = np.arange(len(sizes))
    number[-1] = -1
    return number[labels], sizes[order]
