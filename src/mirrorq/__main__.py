"""`python -m mirrorq`: the `mirrorq` command where scripts are not on the path."""

from mirrorq.cli import main

main(prog_name="mirrorq")
