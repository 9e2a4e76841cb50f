"""Features → base labels: members are drawn from a seed, fitted on a sample of rows, and label all rows.

May import ``method`` (its compiled loops) and all below. Start at ``generate``.
"""
