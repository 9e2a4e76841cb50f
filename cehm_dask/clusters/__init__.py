"""A file of ``cluster_configs/`` → a Dask client: configuration, start, checks of workers, certificates, manifests.

May import ``data``. Start at ``connect``. "Cluster" here always means machines.
"""
