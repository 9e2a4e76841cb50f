"""The paper's experiments again, and comparisons of methods on anybody's data.

May import ``pipeline`` and all below. Start at ``compare`` (one data set) or ``reproduce`` (all of the paper's).
"""
