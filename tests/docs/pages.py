"""The pages as data: fenced blocks, commands, links and anchors of README, docs/ and the files beside them."""

import re
import shlex
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]

_NOT_RUN = re.compile(r"<!-- not run: ([\w-]+) -->")
_FENCE = re.compile(r"(```+|~~~+)\s*(\w*)")
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_INCLUDED = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


def name_of(page):
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    place: str
    language: str
    text: str
    not_run: str | None
    """The reason's name, if a comment above the block says that it is not run."""


def blocks(page):
    """The fenced blocks of a page, in order."""
    lines, start, found = page.read_text().splitlines(), None, []
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if start is None and fence:
            start, opened, language = number, fence[1], fence[2]
        elif start is not None and line.strip() == opened:
            above = _NOT_RUN.fullmatch(lines[start - 1]) if start else None
            text = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(f"{name_of(page)}:{start + 2}", language, text, above and above[1]))
            start = None
    assert start is None, f"{name_of(page)}:{start}: a block that is not closed"
    return found


def commands(shell):
    """The ``cehm`` commands in a block of shell lines: (arguments, file that stdout goes to or None) pairs."""
    found = []
    for line in shell.replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words and words[0].rpartition("/")[2] == "cehm":
                target = words[words.index(">") + 1] if ">" in words else None
                found.append((words[1 : words.index(">")] if target else words[1:], target))
    return found


def prose(page):
    """A page without its fenced blocks."""
    kept, opened = [], None
    for line in page.read_text().splitlines():
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened = fence[1]
        elif opened is None:
            kept.append(line)
        elif line.strip() == opened:
            opened = None
    return "\n".join(kept)


def inline_commands(page):
    """Commands that the text of a page mentions, as words, such as ``cehm plan``."""
    return [code.split()[1:] for code in _INLINE.findall(prose(page)) if code.startswith("cehm ")]


def links(page):
    """Targets of the links and pictures of a page."""
    return _LINK.findall(_INLINE.sub("", prose(page)))


def anchors(page):
    """What a link into a page may name behind ``#``: its headings, as MkDocs and code hosts spell them."""
    included = _INCLUDED.search(page.read_text())
    if included:
        return anchors(ROOT / included[1])
    found, seen = set(), Counter()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        found.add(f"{slug}_{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found
