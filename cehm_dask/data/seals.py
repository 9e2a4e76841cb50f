"""Digests, by which a changed byte is noticed.

Below the stores and the run directory. A digest detects accidents (a flipped bit, a swapped file, an edit by hand);
it is no signature: anyone who can write the data can write the digest too.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "digest"
"""Name of the digest of plain facts, among them."""

_SIZE = 16
_MARK = b"cehm"


def digest_of(content: Any) -> str:
    """Of bytes, or of an array that is contiguous."""
    return hashlib.blake2b(content, digest_size=_SIZE).hexdigest()


def seal_of(facts: Mapping[str, Any]) -> str:
    """Of plain facts, whatever their order; their own seal is left out.

    >>> seal_of({"a": 1, "b": (2,)}) == seal_of({"b": [2], "a": 1, "digest": "any"})
    True
    """
    unsealed = {name: value for name, value in facts.items() if name != SEAL}
    return digest_of(json.dumps(unsealed, sort_keys=True).encode())


def with_seal(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they come back from a file of JSON, and their seal among them."""
    plain = json.loads(json.dumps(facts))
    return {**plain, SEAL: seal_of(plain)}


def is_broken(facts: Mapping[str, Any]) -> bool:
    """Whether facts have a seal that is not theirs; without one, as earlier versions wrote them, nothing is known."""
    return SEAL in facts and facts[SEAL] != seal_of(facts)


def sealed(payload: bytes) -> bytes:
    """The content of a file that holds a payload and its digest."""
    return payload + _MARK + hashlib.blake2b(payload, digest_size=_SIZE).digest()


def unsealed(content: bytes) -> bytes:
    """The payload of such a file, or ValueError if a byte of it has changed."""
    payload, mark = content[: -_SIZE - len(_MARK)], content[-_SIZE - len(_MARK) :]
    if mark != sealed(payload)[len(payload) :]:
        raise ValueError("its digest is wrong or missing")
    return payload
