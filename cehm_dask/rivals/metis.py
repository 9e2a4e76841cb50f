"""METIS for the rivals that ask for balanced parts of a graph: CSPA and MCLA. Needs the extra ``metis``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cehm_dask.errors import MissingExtraError


def balanced_parts(graph: Any, n_parts: int, seed: int) -> NDArray[np.intp]:
    """Parts of nearly equal size that cut edges of little weight.

    ``graph`` is a symmetric table of whole weights, sparse or not; its diagonal is left out.
    """
    try:
        import pymetis
    except ImportError as error:
        raise MissingExtraError("CSPA and MCLA need METIS: pip install 'cehm-dask[metis]'") from error
    edges = sparse.csr_array(graph)
    edges.setdiag(0)
    edges.eliminate_zeros()
    if n_parts == 1 or edges.nnz == 0:
        return np.arange(edges.shape[0]) % n_parts
    found = pymetis.part_graph(
        n_parts,
        adjacency=pymetis.CSRAdjacency(edges.indptr.astype(np.int32), edges.indices.astype(np.int32)),
        eweights=edges.data.astype(np.int32),
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.asarray(found.vertex_part, np.intp)
