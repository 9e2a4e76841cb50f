"""Who the clusters are: mean, spread and quantiles of every feature in every cluster, and what sets each apart.

May import ``method`` (its compiler), ``job`` and all below. Start at ``sweep``: one pass over features and labels gives
sums by cluster; ``profile`` makes of them what people ask for, ``words`` says it.
"""
