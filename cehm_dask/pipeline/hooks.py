"""Commands that a recipe asks for when a run ends: argument lists, never a shell; what they say goes to the log.

Below the run. A hook that fails, hangs or is not there is a warning: the run is what it was before.
"""

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence

log = logging.getLogger("cehm_dask.pipeline.run")

SECONDS = 600
"""After which a hook is ended."""
MOST_SAID = 2000
"""Letters of what a hook prints that are logged, its last."""


def call(name: str, command: Sequence[str], told: Mapping[str, str]) -> None:
    """Call a hook and wait for it.

    Parameters
    ----------
    name : str
        "success" or "failure".
    command : sequence of str
    told : mapping
        What the hook finds in its environment, beside all that is there.
    """
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.warning("hook %s: %s did not run to its end (%s)", name, command[0], error)
        return
    said = done.stdout.decode(errors="replace").strip()[-MOST_SAID:]
    if done.returncode:
        log.warning("hook %s: %s ended with %d: %s", name, command[0], done.returncode, said or "it said nothing")
    else:
        log.info("hook %s: %s is done%s", name, command[0], f": {said}" if said else "")
