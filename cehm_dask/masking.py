"""Secrets: the values that may not be shown, and the ways out on which they are masked.

Above the errors, below everything that writes or prints. A value that comes from the environment (``${VAR}`` in a
recipe or cluster file, or a variable whose name says that it is a credential) is remembered here. Every text that
leaves the process goes through :func:`masked`: what the command prints, logs, errors, texts in files. It puts the name
back in place of the value, however the value is escaped. Credentials in URLs are masked too, wherever they come from.

No secrets are: what follows ``:-`` in ``${VAR:-default}``, which stands in the file; values of fewer than LEAST
characters and numbers of fewer than LEAST_DIGITS digits, which would be found everywhere; the words of a recipe.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO
from urllib.parse import unquote

from cehm_dask.errors import ReaderGoneError

LEAST = 4
LEAST_DIGITS = 8

HIDDEN = "***"
"""In place of a secret that has no name."""

_CREDENTIAL = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|ACCESS_?KEY|API_?KEY|CONNECTION_STRING", re.IGNORECASE)
_NUMBER = re.compile(r"[-+0-9.,:e_\s]*([kmgtp]i?b)?", re.IGNORECASE)
_USER = re.compile(r"(?<=://)(?:[^\s/@'\"<>:]*:[^\s'\"<>]*|[^\s/@'\"<>]+)@")
_QUERY = re.compile(
    r"([?&;][\w-]*(?:key|token|secret|passw\w*|signature|credentials?|sig)(?:[_-]?id)?=)([^&\s'\"<>;]+)", re.IGNORECASE
)

_known: dict[str, str] = {}
"""What is shown, by value."""
_words: set[str] = set()
_pattern: re.Pattern[str] | None = None
"""All values, a group each, the longest first; None: to be made."""
_shown: list[str] = []
"""What is shown, by group."""


def never_secret(words: Collection[str]) -> None:
    """Words that mean something to the program, such as "auto", and would be missed if they were masked."""
    _words.update(words)


def remember(value: str, name: str | None = None) -> None:
    """From now on, show ``${name}``, or nothing, in place of a value."""
    instead = HIDDEN if name is None else f"${{{name}}}"
    _add(value, instead)
    if "://" in value:
        _add(value.rstrip("/"), instead)
        _add(value.partition("://")[2].rstrip("/"), instead)  # as file systems name it
    elif "/" in value:
        path = re.sub(r"^(\.\.?/)+", "", os.path.normpath(value))
        here = [f"{folder}/" for folder in (os.getcwd(), os.path.expanduser("~"))]  # everybody knows these
        while path.strip("/").count("/") >= 1 and not any(folder.startswith(f"{path}/") for folder in here):
            _add(path, instead)
            path, instead = os.path.dirname(path), f"{instead}/.."  # errors may name the folder
    for line in value.splitlines():
        if len(line) >= LEAST_DIGITS:
            _add(line, instead)


def _add(value: str, instead: str) -> None:
    global _pattern
    digits = sum(letter.isdigit() for letter in value)
    number = _NUMBER.fullmatch(value) is not None and digits < LEAST_DIGITS
    if len(value) >= LEAST and value not in _words and not number:
        _known.setdefault(value, instead)
        _pattern = None


def remember_credentials(environment: Mapping[str, str], arguments: Iterable[str] = ()) -> None:
    """Remember the values of variables whose names say that they are credentials, and credentials in URLs."""
    for name, value in environment.items():
        # The path of a file with credentials is none.
        is_file = os.path.isabs(value) and os.path.exists(value)
        if _CREDENTIAL.search(name) and len(value) >= LEAST_DIGITS and not is_file:
            remember(value, name)
    for text in arguments:
        found = [match[2] for match in _QUERY.finditer(text)]
        for match in _USER.finditer(text):
            found += [match[0], match[0].rstrip("@").partition(":")[2]]
        for value in found:  # errors may name them without the URL
            remember(value)
            remember(unquote(value))


def fill_in(text: str, value: str) -> None:
    """Remember secrets also with a text in them filled in, such as ``{date}``."""
    for secret, instead in known().items():
        if text in secret:
            _add(secret.replace(text, value), instead)


def known() -> dict[str, str]:
    """What is shown by value, to hand on to other processes."""
    return dict(_known)


def forget() -> None:
    """Forget all values."""
    global _pattern
    _known.clear()
    _pattern = None


def _compiled() -> re.Pattern[str]:
    global _pattern
    if _pattern is None:
        values = sorted(_known, key=len, reverse=True)
        _shown[:] = [_known[value] for value in values]
        # White space in runs, for messages are often put on one line.
        parts = (re.findall(r"\s+|\S", value) for value in values)
        _pattern = re.compile("|".join(f"({''.join(map(_ways, each))})" for each in parts))
    return _pattern


def _ways(part: str) -> str:
    """A pattern of a character, or of white space, as it is or as repr, JSON, a URL, HTML or a shell would have it."""
    if part.isspace():
        return r"(?:\s|\\+(?:[nrtfv]|x[0-9a-f]{2}|u[0-9a-f]{4})|\+|(?i:%[0-9a-f]{2})|&#\d+;)+"
    octets = part.encode(errors="surrogatepass")
    ways = [re.escape(part), "(?i:" + "".join(f"%{octet:02x}" for octet in octets) + ")"]
    if part.isascii() and part.isalnum():
        return f"(?:{'|'.join(ways)})"
    if part == "\\":
        return rf"(?:\\+|{ways[1]})"
    code = ord(part)
    ways += [f"&#{code};", f"(?i:&#x0*{code:x};)", rf"(?i:u{code:04x}|U{code:08x}|x{code:02x})"]
    ways += ["".join(rf"x{octet:02x}\\*" for octet in octets)]
    if code > 0xFFFF:  # JSON writes it in two halves
        halves = part.encode("utf-16-be").hex()
        ways.append(rf"(?i:u{halves[:4]}\\+u{halves[4:]})")
    twice = {"'": ["''", r"'\"'\"'", r"'\\''", "&apos;"], '"': ['""', "&quot;"]}
    entities = {"&": ["&amp;"], "<": ["&lt;"], ">": ["&gt;"]}
    ways = [*twice.get(part, []), *entities.get(part, []), *ways]
    return rf"\\*(?:{'|'.join(ways)})"


def masked(text: str) -> str:
    """A text as it may be shown: names in place of the values of variables, no credentials in URLs.

    >>> masked("cannot read s3://key:secret@bucket/x?token=abc&part=1")
    'cannot read s3://***@bucket/x?token=***&part=1'
    """
    if _known:
        text = _compiled().sub(lambda match: _shown[int(match.lastindex or 1) - 1], text)
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """A text without credentials in URLs."""
    if "://" in text or "=" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", _USER.sub(f"{HIDDEN}@", text))
    return text


def masked_values(data: Any, mask: Callable[[str], str] = masked) -> Any:
    """Plain values with all texts in them masked, keys aside: what programs read keeps its form."""
    if isinstance(data, str):
        return mask(data)
    if isinstance(data, Mapping):
        return {name: masked_values(value, mask) for name, value in data.items()}
    return [masked_values(value, mask) for value in data] if isinstance(data, list | tuple) else data


def masked_json(data: Any, **options: Any) -> str:
    """Plain values, masked, as JSON."""
    return json.dumps(masked_values(data), **options)


def shown(value: Any, most: int = 60) -> str:
    """A value as errors name it: masked before it is cut, so that no half of a secret stays."""
    return masked(repr(value))[:most]


def mask_error(error: BaseException) -> None:
    """Mask what an error says, and the errors behind it: whoever catches it may log it."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = tuple(masked(part) if isinstance(part, str) else part for part in one.args)
        for name in ("filename", "filename2"):
            if isinstance(part := getattr(one, name, None), str):
                with suppress(AttributeError):
                    setattr(one, name, masked(part))
        ahead += [one.__cause__, one.__context__]


class MaskedStream:
    """A text stream that masks all that is written to it.

    ``spare``: what cannot be written to it, as on a full disk, is lost, and is no reason to end with another exit code.
    """

    def __init__(self, raw: TextIO, *, spare: bool = False) -> None:
        self.raw: TextIO = raw.raw if isinstance(raw, MaskedStream) else raw
        self._spare = spare
        self.buffer = _MaskedBytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"expected text, not {type(text).__name__}")
        self.write_masked(masked(text))
        return len(text)

    def write_masked(self, text: str) -> None:
        """Write what is masked already, value by value."""
        with self._written():
            self.raw.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._written():
            self.raw.flush()

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            with _reader_there():
                yield
        except OSError as error:
            if not self._spare or isinstance(error, ReaderGoneError):
                raise
            look_away(self.raw)

    def __getattr__(self, name: str) -> Any:
        if name == "raw":  # not there yet
            raise AttributeError(name)
        return getattr(self.raw, name)


class _MaskedBytes:
    """Where bytes are written that are text; the stream's own would be a way around the mask."""

    def __init__(self, stream: MaskedStream) -> None:
        self._stream = stream

    def write(self, content: bytes) -> int:
        self._stream.write(bytes(content).decode(errors="replace"))
        return len(content)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def _reader_there() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:  # told apart from a connection that breaks
        raise ReaderGoneError("the reader of the output has gone") from error


def look_away(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, nowhere: else it would fail again when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def masked_streams() -> Iterator[None]:
    """Mask what this process prints, to stdout and to stderr."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr, spare=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def mask_process(values: Mapping[str, str]) -> None:
    """Mask what another process, such as a Dask worker, prints and logs from now on; ``values``: of :func:`known`."""
    for value, instead in values.items():
        _add(value, instead)
    sys.stdout, sys.stderr = MaskedStream(sys.stdout), MaskedStream(sys.stderr, spare=True)
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(MaskedStream(handler.stream))
