"""mirrorq.testing: whole clusters on virtual time, for mirrorq's tests and for yours.

    cluster     `SimulatedCluster`: nodes, disks, network, crashes
    network     links that delay, lose and break
    disk        what a commit takes, and what a crash leaves of it
    onlooker    what is watched at each step: orders, masters, confirms

Nothing here sleeps, opens a socket or writes a file.
"""

from mirrorq.testing.cluster import SimulatedCluster, states

__all__ = ["SimulatedCluster", "states"]
