"""The other consensus methods, one file each, behind one signature: labels, number of clusters, seed, where.

For comparison, and for users whom another method serves better. May import ``job`` and all below. Start at
``METHODS``, which names them; a method's file is imported when it is first called.

>>> from cehm_dask.rivals import METHODS
>>> METHODS["voting"]([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 2]], 2).tolist()
[0, 0, 1, 1]
"""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cehm_dask.job import Where


@dataclass(frozen=True)
class Method:
    """A consensus method."""

    name: str
    title: str
    description: str
    reference: str
    largest_n: int | None = None
    """Most samples it takes; None: any, block by block within the memory allowed."""
    distinct: bool = False
    """Whether ``largest_n`` counts samples with different rows of labels only."""

    def __call__(
        self, base_labels: Any, n_clusters: int, seed: int = 0, where: "Where | None" = None
    ) -> "NDArray[np.int16]":
        """Consensus labels of all samples, -1 where no member says anything.

        Parameters
        ----------
        base_labels : Labels, or any form of base labels that ``CEHM.fit`` takes
        n_clusters : int
        seed : int
        where : Where, optional
            Memory, threads, client (default: the current one; False: none); changes no label.
        """
        from cehm_dask.clusters.current import client_of
        from cehm_dask.job import Where, opened

        function = getattr(import_module(f"cehm_dask.rivals.{self.name}"), self.name)
        where = where or Where()
        with client_of(where.client) as client:
            # Methods for few samples look at all rows here.
            holder = client if self.largest_n is None else None
            with opened(base_labels, holder, where.memory) as held:
                found: NDArray[np.int16] = function(held.labels, n_clusters, seed, replace(where, client=client))
        return found


METHODS = {
    method.name: method
    for method in (
        Method("usenc", "U-SENC", "transfer cut of the samples–hyperedges graph", "Huang et al., TKDE 2020"),
        Method("lwgp", "LWGP", "that cut, hyperedges weighted by agreement", "Huang et al., Trans. Cybernetics 2018"),
        Method("hbgf", "HBGF", "samples and hyperedges partitioned together", "Fern and Brodley, ICML 2004"),
        Method("ecpcs_mc", "ECPCS-MC", "meta-clusters by random walks", "Huang et al., TSMC:S 2021"),
        Method("wct", "WCT", "link-based, weighted connected triples", "Iam-On et al., TPAMI 2011"),
        Method("wtq", "WTQ", "link-based, weighted triple quality", "Iam-On et al., TPAMI 2011"),
        Method("sec", "SEC", "weighted k-means of the incidence matrix", "Liu et al., KDD 2015"),
        Method("voting", "Voting", "adaptive cumulative voting", "Ayad and Kamel, TPAMI 2008"),
        Method("mcla", "MCLA", "METIS on the hyperedges (extra metis)", "Strehl and Ghosh, JMLR 2002"),
        Method("eac", "EAC", "average linkage of co-association", "Fred and Jain, TPAMI 2005", 20_000),
        Method("pta", "PTA", "linkage of probability trajectories", "Huang et al., TKDE 2016", 12_000, distinct=True),
        Method("ptgp", "PTGP", "cut by probability trajectories", "Huang et al., TKDE 2016", 12_000, distinct=True),
        Method("drec", "DREC", "dense representation", "Zhou et al., Neurocomputing 2019", 12_000, distinct=True),
        Method("ec_cms", "EC-CMS", "co-association that enhances itself", "Jia et al., TNNLS 2023", 10_000),
        Method("cspa", "CSPA", "METIS on the samples (extra metis)", "Strehl and Ghosh, JMLR 2002", 10_000),
    )
}
