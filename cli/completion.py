"""`tpu completion SHELL`: the script that completes commands, environments and options."""

import click
from click.shell_completion import get_completion_class

from cli.command import Command

VARIABLE = "_TPU_COMPLETE"


@click.command(cls=Command, examples=["bash >> ~/.bashrc"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell; load it with `eval "$(tpu completion bash)"`."""
    kind = get_completion_class(shell)
    assert kind is not None, "click completes the three"
    click.echo(kind(ctx.find_root().command, {}, "tpu", VARIABLE).source())
    return 0
