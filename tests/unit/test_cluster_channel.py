"""The kernel's channel to the ranks' supervisors accepts only connections with its token."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from parlab.cluster.channel import Channel
from tests.conftest import wait_until


@pytest.fixture
def channel() -> Iterator[Channel]:
    channel = Channel(lambda process: None)
    yield channel
    channel.close()


def connected(channel: Channel, token: str) -> socket.socket:
    """Return a connection that claims to be the supervisor of rank 0."""
    connection = socket.create_connection(("127.0.0.1", int(channel.address.split(",")[0])), 30)
    hello = {"hello": token, "rank": 0, "pid": 1, "host": "here"}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    return connection


def test_a_connection_with_the_wrong_token_is_closed_and_no_rank(channel: Channel) -> None:
    # The connection may be closed before any of these calls.
    with connected(channel, "0" * 32) as connection, contextlib.suppress(OSError):
        # With the right token, this would be an exit status, and the connection would stay open.
        connection.sendall(b'{"exit": 3}\n')
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert channel.ranks == {}


def test_a_supervisor_with_the_token_is_its_rank(channel: Channel) -> None:
    with connected(channel, channel.address.split(",")[1]) as connection:
        connection.sendall(b'{"exit": 3}\n')
        with channel._changed:
            assert channel._changed.wait_for(channel.deaths, 30)
    assert channel.deaths() == {0: 3}


def test_the_threads_of_a_closed_channel_end() -> None:
    before = set(threading.enumerate())
    channel = Channel(lambda process: None)
    with connected(channel, channel.address.split(",")[1]):
        wait_until(lambda: 0 in channel.ranks, 30, "the connection")
        channel.close()
        wait_until(lambda: set(threading.enumerate()) <= before, 30, "the end of the threads")
