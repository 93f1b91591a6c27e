"""Finds the machines on which a profile's ranks run, and the networks that connect them."""

from dataclasses import dataclass

Address = tuple[str, int]


@dataclass(frozen=True)
class Link:
    """A TCP connection between a rank and any other process."""

    here: Address
    there: Address
    interface: str  # network interface with the address `here`


def links() -> list[Link]:
    """Return all TCP connections of this rank. Collective over all ranks.

    Each rank first sends a message to the next one, so that a connection between them exists.
    """
    import psutil

    from parlab.rank.world import comm

    comm.sendrecv(None, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    interfaces = {
        _plain(address.address): name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
    }
    return [
        Link(
            (_plain(found.laddr.ip), found.laddr.port),
            (_plain(found.raddr.ip), found.raddr.port),
            interfaces.get(_plain(found.laddr.ip), found.laddr.ip),
        )
        for found in psutil.Process().net_connections("tcp")
        if found.status == psutil.CONN_ESTABLISHED
    ]


def _plain(address: str) -> str:
    """Return an address in a form that can be compared.

    Convert IPv4 addresses that are written as IPv6, and remove the interface after `%`.
    """
    return address.removeprefix("::ffff:").partition("%")[0]


def interfaces(hosts: list[str], found: list[list[Link]]) -> list[str]:
    """Return the interfaces of links between ranks on different hosts. Both lists are by rank."""
    host_of = {
        (link.here, link.there): host
        for host, of_rank in zip(hosts, found, strict=True)
        for link in of_rank
    }
    # A link between two ranks is in the lists of both. Other links lead to the notebook or mpiexec.
    between = {
        link.interface
        for host, of_rank in zip(hosts, found, strict=True)
        for link in of_rank
        if host_of.get((link.there, link.here), host) != host
    }
    return sorted(between)


def description(hosts: list[str], interfaces: list[str]) -> str:
    """Return a text such as `4 ranks on 2 nodes, 2 on each (n1, n2); messages between nodes …`."""
    ranks = f"{len(hosts)} ranks" if len(hosts) > 1 else "1 rank"
    counts = {host: hosts.count(host) for host in hosts}
    if len(counts) == 1:
        return f"{ranks} on 1 node ({hosts[0]})"
    if len(set(counts.values())) == 1:
        on = f"{len(counts)} nodes, {counts[hosts[0]]} on each ({', '.join(counts)})"
    else:
        shares = ", ".join(f"{count} on {host}" for host, count in counts.items())
        on = f"{len(counts)} nodes: {shares}"
    over = f"over {', '.join(interfaces)} (TCP)" if interfaces else "over a fabric instead of TCP"
    return f"{ranks} on {on}; messages between nodes go {over}"
