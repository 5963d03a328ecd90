"""`tpu completion SHELL`: prints a script that completes commands, environments and options.

eval "$(tpu completion bash)"
"""

import argparse
from collections.abc import Sequence

# Options are asked for when they are completed, so that the script never lags behind the commands.
_BASH = """\
_tpu() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words
  case $COMP_CWORD in
    1) words="{commands}" ;;
    2) if [[ $word != -* ]]; then
         words=$(for one in Pulumi.*.yaml; do one=${{one#Pulumi.}}; echo "${{one%.yaml}}"; done)
         [[ $words != "*" ]] || words=
       fi ;;
  esac
  if [[ $word == -* ]]; then
    words=$(tpu "${{COMP_WORDS[1]}}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  [[ ${{#COMPREPLY[@]}} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}}
complete -F _tpu tpu
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
_FISH = """\
function __tpu_environments
  for one in Pulumi.*.yaml; string replace -r '^Pulumi\\\\.(.*)\\\\.yaml$' '$1' $one; end
end
complete -c tpu -n '__fish_is_first_token' -f -a '{commands}'
complete -c tpu -n 'test (count (commandline -opc)) -eq 2' -a '(__tpu_environments)'
"""


def script(shell: str, commands: Sequence[str]) -> str:
    """For bash, zsh or fish; zsh reads bash's."""
    listed = " ".join(commands)
    if shell == "fish":
        return _FISH.format(commands=listed)
    return (_ZSH if shell == "zsh" else "") + _BASH.format(commands=listed)


def main(arguments: Sequence[str], commands: Sequence[str]) -> int:
    """Print the completion script of a shell."""
    example = 'eval "$(tpu completion bash)"'
    parser = argparse.ArgumentParser(
        prog="tpu completion", description=main.__doc__, epilog=f"example: {example}"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    print(script(parser.parse_args(arguments).shell, commands), end="")
    return 0
