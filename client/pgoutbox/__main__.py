"""`python -m pgoutbox` is the command `pgoutbox`."""

from .cli import main

main(prog_name="pgoutbox")
