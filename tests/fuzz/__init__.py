"""Everything that reads bytes from outside, fed with what is almost right.

`make fuzz COUNT=1000000`; `python -m fuzz --help` in tests/.
"""
