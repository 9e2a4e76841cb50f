"""Everything that lies on disk or comes in: files, locks, tables, base labels, features, the Zarr stores.

May import ``errors``, ``masking``, ``machine`` and ``progress`` only. Start at ``labels`` (any form of
base labels → checked blocks) and ``ensemble_store`` (the same, in chunks on disk).
"""
