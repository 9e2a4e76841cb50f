"""Texts that nobody would write on purpose, made from texts that somebody would; the same for the same seed."""

import random

ODD = [
    *("!!python/object:os.system", "!!python/name:os.system x", "!!binary aGk=", "!!binary x", "!!timestamp x"),
    *("!!timestamp 2026-01-01", "!!set {a, b}", "!!omap [a: 1]", "!!int x", "!!int ''", "!!float x", "!!bool maybe"),
    *("!!null x", "!!str 3", "!own x", "2026-01-01", "2026-01-01T00:00:00Z", "12:30:45", "0x", "0x1f", "0o17", "1_000"),
    *("1..99999999999", "99999999999..1", "1..", "..", "-1..3", "1,2,x", "9" * 5000, "1e400", "-0", ".nan", ".inf"),
    *(
        "~",
        "null",
        "true",
        "yes",
        "[]",
        "{}",
        "[[[]]]",
        "{a: {b: {c: 1}}}",
        "? [a, b]\n: c",
        "<<: {a: 1}",
        "&a 1",
        "*a",
    ),
    *("${X}", "${NONE}", "${NONE:-}", "${X", "${}", "${X:-{date}}", "{date}", "{day}", "{", "}", "{0}", "{date!r}"),
    *(
        "'",
        '"',
        "\\",
        "\x00",
        "\x07",
        "\t",
        "\r",
        "\n",
        "\u2028",
        "\ufeff",
        "é",
        "\U0001f600",
        "\ud800",
        "|",
        ">",
        "%",
        "#",
    ),
    *(
        "---",
        "...",
        "int",
        "list[int]",
        "literal['a']",
        "k: auto",
        "2GiB",
        "-5GiB",
        "999999999999999999999GiB",
        "=",
        ".",
    ),
]


def mutated(text: str, rng: random.Random) -> str:
    """A text with a few changes: values replaced, lines moved, cut or doubled, characters changed, oddities put in."""
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        lines = text.splitlines(keepends=True) or [""]
        place = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                key, colon, _ = lines[place].partition(":")
                lines[place] = f"{key}{colon} {rng.choice(ODD)}\n"
            case 1:
                lines.insert(place, lines[rng.randrange(len(lines))])
            case 2:
                del lines[place]
            case 3:
                lines[place] = " " * rng.randrange(5) + lines[place].lstrip()
            case 4:
                lines[place] = f"{rng.choice(ODD)}: {lines[place].partition(':')[2]}"
            case 5:
                cut = rng.randrange(len(lines[place]) + 1)
                lines[place] = lines[place][:cut] + rng.choice(ODD) + lines[place][cut:]
            case 6:
                cut = rng.randrange(len(lines[place]) + 1)
                lines[place] = lines[place][:cut] + chr(rng.randrange(1, 0x3000)) + lines[place][cut + 1 :]
            case _:
                text = "".join(lines)
                lines = [text[: rng.randrange(len(text) + 1)]]
        text = "".join(lines)
    return text
