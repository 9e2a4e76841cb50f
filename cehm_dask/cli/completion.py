"""What a shell offers behind an option or argument: its values, or files.

Beside the commands, which are quick to load: values are spelled out here, and a test compares them with the modules
that they belong to. ``docs/recipes.md`` says how completion is switched on.
"""

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

VALUES: dict[str, Sequence[str]] = {
    "generate --base": ("kmeans", "minibatch", "mixture", "birch", "dask-ml"),
    "generate --scale": ("none", "standard", "minmax", "robust", "log", "quantile", "rank"),
    "generate --impute": ("mean", "median", "most_frequent"),
    "generate --categories": ("one-hot", "ordinal", "drop"),
    "generate --dates": ("days", "drop"),
    "consensus --choose": ("agreement", "loss"),
    "reproduce --scale": ("standard", "minmax", "both"),
}
"""Of options that take any text, so that what is wrong is refused in the words of the package."""

FILES = {
    "--output",
    "--cluster",
    "--truth",
    "--features",
    "--ensemble",
    "--coordinates",
    "--ids",
    "--picture",
    "--check",
}
"""Options that name a file or folder; so do all arguments."""


class OneOf(StringParamType):
    """Text for which a shell offers values."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = values

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in self.values if value.startswith(incomplete)]


class FileName(StringParamType):
    """Text for which a shell offers files: a path, or a URL."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def complete(command: click.Command) -> click.Command:
    """Let a shell offer what an option or argument of a command may be."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        complete(inner)
    for param in command.params:
        if type(param.type) is not StringParamType:
            continue
        values = [VALUES[f"{command.name} {name}"] for name in param.opts if f"{command.name} {name}" in VALUES]
        if values:
            param.type = OneOf(values[0])
        elif isinstance(param, click.Argument) or FILES.intersection(param.opts):
            param.type = FileName()
    return command
