"""``python -m cehm_dask``: the command, for jobs and machines where only the path of a Python is known."""

from cehm_dask.cli import main

main()
