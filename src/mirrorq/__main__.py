"""`python -m mirrorq`: the `mirrorq` command where scripts are not on the path."""

from mirrorq.cli import main

if __name__ == "__main__":
    main(prog_name="mirrorq")
