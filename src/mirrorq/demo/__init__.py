"""The demo: peers in processes of their own, real input, a SIGKILL, and a check of every row.

`course` starts the peers (`peer`), has rows (`source`) published through one and taken on
another (`roles`), kills and restarts as planned, shows it (`progress`), and then compares what
came out with the source, row by row (`check`).
"""
