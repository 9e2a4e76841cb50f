"""Who does which rows: the memory budget, and sweeps over row blocks on threads or on a Dask client.

May import ``data``. Start at ``sweep``: one call hands every row block to a function once and sums what comes back.
"""
