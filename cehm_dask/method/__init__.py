"""The method: the paper's stages, the default answer, and the compiled loops under both.

May import ``data`` and ``engine``. Start at ``consensus``, which goes through the stages in order; ``rounds`` is what
happens to one row block.
"""
