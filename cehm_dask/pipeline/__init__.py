"""A recipe → one run directory: reading the recipe, estimating its cost, running and submitting it.

May import ``report`` and all below. Start at ``run``.
"""
