"""The errors of this package, and the exit code of each.

Below everything. A scheduler decides by the exit code whether to try again, so every error that is not a bug belongs to
one of these families. Each is also the built-in error that Python users expect (``ValueError``, ``OSError``, …).

==  =================================================================  ==========
1   a bug of this package, shown with its traceback                     no
2   input, options or a recipe are wrong: correct them                  no
3   it does not fit the memory allowed; said before work starts         no
4   interrupted (Ctrl-C, SIGTERM); the same command resumes             yes
5   the Dask cluster cannot be reached, or was lost; resumes            yes
6   storage failed (disk full, I/O error, object store); resumes        yes
7   another run is writing the same output                              yes, later
8   done, but more changed than the recipe allows (--fail-on-alert)     no
==  =================================================================  ==========
"""

import errno

BUG, INPUT, BUDGET, INTERRUPTED, CLUSTER, STORAGE, BUSY, ALERT = range(1, 9)

RETRYABLE = frozenset({INTERRUPTED, CLUSTER, STORAGE, BUSY})
"""Exit codes after which the same command may succeed."""


class CehmError(Exception):
    """Any error that this package raises on purpose."""

    exit_code = INPUT


class InputError(CehmError, ValueError):
    """Input, an option or a recipe is wrong; the message names the thing, its value and the remedy."""


class InputTypeError(InputError, TypeError):
    """Input of a type that is not accepted."""


class NotFoundError(InputError, FileNotFoundError):
    """A file or folder that should be there is not."""


class ExistsError(InputError, FileExistsError):
    """An output that exists and may not be replaced."""


class MissingExtraError(InputError, ImportError):
    """An optional package is needed and not installed."""


class StoreError(CehmError, OSError):
    """A store that is missing, incomplete, damaged, or of another kind or version."""


class ReplacedError(StoreError):
    """Data that changed while they were being read; the same command may succeed."""

    exit_code = STORAGE


class BudgetError(CehmError, ValueError):
    """Work that does not fit the memory allowed."""

    exit_code = BUDGET


class ClusterError(CehmError, RuntimeError):
    """A Dask cluster that cannot be reached or was lost."""

    exit_code = CLUSTER


class StorageError(CehmError, OSError):
    """Storage failed just now: a full disk, an I/O error, an object store that does not answer."""

    exit_code = STORAGE


class BusyError(CehmError, OSError):
    """Another run holds the output."""

    exit_code = BUSY


class AlertError(CehmError):
    """A run that is done, and whose clusters changed by more than the recipe allows."""

    exit_code = ALERT


class ReaderGoneError(CehmError, BrokenPipeError):
    """Whoever read what is printed has stopped reading."""

    exit_code = INTERRUPTED


_USERS_MISTAKES = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ImportError,  # an optional package that a file system or transformer asks for
)

_WRONG_PLACES = {errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
"""Of other errors of the operating system, those that a second try does not heal."""

_STORAGE_PACKAGES = {
    *("botocore", "aiobotocore", "boto3", "s3transfer", "s3fs", "gcsfs", "adlfs", "azure", "google", "fsspec"),
    *("aiohttp", "urllib3", "requests"),
}
"""Packages of object stores, whose errors are often no OSError."""

_WRONG_SETTINGS = {
    *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ConfigNotFound", "ConfigParseError"),
    *("ParamValidationError", "InvalidRegionError", "NoRegionError", "InvalidURL", "InvalidSchema", "MissingSchema"),
}
"""Of their errors, those that a second try does not heal."""


def exit_code_of(error: BaseException) -> int:
    """What a process that ends with this error reports.

    >>> exit_code_of(InputError("k=0")), exit_code_of(OSError(28, "No space left on device")), exit_code_of(KeyError(1))
    (2, 6, 1)
    """
    if isinstance(error, StoreError) and _is_passing(error.__cause__):
        return STORAGE  # a store that could not be read just now is not one that is damaged
    if isinstance(error, CehmError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, MemoryError):
        return BUDGET
    if isinstance(error, _USERS_MISTAKES):
        return INPUT
    if isinstance(error, OSError):
        return INPUT if error.errno in _WRONG_PLACES else STORAGE
    if isinstance(error, ValueError) and _raised_in(error) in _STORAGE_PACKAGES:
        return INPUT  # a URL of an unknown kind, or without a bucket
    kinds = type(error).__mro__
    if any(kind.__module__.partition(".")[0] in _STORAGE_PACKAGES for kind in kinds):
        return INPUT if any(kind.__name__ in _WRONG_SETTINGS for kind in kinds) else STORAGE
    return BUG


def _is_passing(cause: BaseException | None) -> bool:
    """Whether storage failed, and not what lies there: a wrong checksum carries no number of the operating system."""
    damage = isinstance(cause, OSError) and cause.errno is None
    return cause is not None and not damage and exit_code_of(cause) == STORAGE


def _raised_in(error: BaseException) -> str:
    """The package whose code raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def sentence_of(error: BaseException) -> str:
    """The message that users see: what happened, and what to do."""
    code = exit_code_of(error)
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, CehmError):
        return str(error)
    if code == BUG:
        return f"{type(error).__name__}: this is a bug of cehm; please report it with the lines above"
    if isinstance(error, MemoryError):
        return f"out of memory ({said}): allow less with --memory, or close other programs"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left on the disk{place}: free some, and give the same command again"
    if code == STORAGE:
        return f"storage failed ({said}): give the same command again"
    if isinstance(error, PermissionError):
        return f"access denied ({said}): check permissions or credentials"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # an object store says little
        return f"not found ({said}): is the path or bucket right?"
    return said
