"""Checks if programs on this machine can reach each other over the loopback interface."""

import socket

SECONDS = 2
REMEDY = "the loopback interface does not work. Switch it on with `sudo ip link set lo up`"


def works() -> bool:
    """Return True if a connection from 127.0.0.1 to itself is possible."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=SECONDS).close()
    except OSError:
        return False
    return True
