"""The system calls that a submission may make: a filter for `bwrap --seccomp`.

It refuses calls that no lab needs and that can escape a sandbox or its limits: keys, which are
shared with the user who started the grader; rings and programs that run in the kernel; mounts,
modules, and tracing; and sockets other than Unix, TCP, UDP, and netlink. They fail as if the kernel
did not have them. Setting a larger buffer of a socket succeeds but has no effect, because the
limiter assumes buffers of the usual size.
"""

import errno
import platform
import struct

# For each machine: the kernel's code for it, the numbers of (socket, socketpair, setsockopt), and
# the refused calls.
_ARCHITECTURES = {
    "x86_64": (0xC000003E, (41, 53, 54), {
        "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "bpf": 321,
        "perf_event_open": 298, "ptrace": 101, "kexec_load": 246, "kexec_file_load": 320,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "mount": 165,
        "umount2": 166, "pivot_root": 155, "setns": 308, "unshare": 272,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "acct": 163, "quotactl": 179,
        "syslog": 103,
    }),
    "aarch64": (0xC00000B7, (198, 199, 208), {
        "add_key": 217, "request_key": 218, "keyctl": 219, "userfaultfd": 282, "bpf": 280,
        "perf_event_open": 241, "ptrace": 117, "kexec_load": 104, "kexec_file_load": 294,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "mount": 40,
        "umount2": 39, "pivot_root": 41, "setns": 268, "unshare": 97,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "acct": 89, "quotactl": 60,
        "syslog": 116,
    }),
}  # fmt: skip
_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "memfd_secret": 447,
}  # fmt: skip
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: AF_UNIX …
_PROTOCOLS = (0, 6, 17)  # the family's default, TCP, UDP
_SOL_SOCKET, _BUFFERS = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and their FORCE variants
_X32 = 0x40000000  # x86_64 has a second set of numbers from here on

# Instructions of the kernel's filters (linux/bpf_common.h), and their results (linux/seccomp.h).
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_IGNORE = _FAIL | 0  # do nothing, and report success
# Offsets in the data that the filter reads.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32


def refused(machine: str = platform.machine()) -> dict[str, int]:
    """Return the refused calls, by name, with their numbers; none on an unknown machine."""
    found = _ARCHITECTURES.get(machine)
    return {**found[2], **_EVERYWHERE} if found else {}


def seccomp_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter as bubblewrap reads it; b"" on an unknown machine."""
    if machine not in _ARCHITECTURES:
        return b""
    architecture, (socket, socketpair, setsockopt), _ = _ARCHITECTURES[machine]
    no_such_call = _FAIL | errno.ENOSYS
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, architecture)]
    code += [(_RETURN, 0, 0, no_such_call), (_LOAD, 0, 0, _NUMBER)]
    code += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, no_such_call)]
    for number in refused(machine).values():
        code += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, no_such_call)]
    buffers = [(_LOAD, 0, 0, _SECOND_ARGUMENT), *_unless((_SOL_SOCKET,), _ALLOW)]
    buffers += [
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        *_unless(_BUFFERS, _ALLOW),
        (_RETURN, 0, 0, _IGNORE),
    ]
    code += [(_IF_EQUAL, 0, len(buffers), setsockopt), *buffers]
    code += _unless((socket, socketpair), _ALLOW)
    code += [(_LOAD, 0, 0, _FIRST_ARGUMENT), *_unless(_FAMILIES, _FAIL | errno.EAFNOSUPPORT)]
    code += [(_LOAD, 0, 0, _THIRD_ARGUMENT), *_unless(_PROTOCOLS, _FAIL | errno.EPROTONOSUPPORT)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _unless(values: tuple[int, ...], answer: int) -> list[tuple[int, int, int, int]]:
    """Return instructions that continue if the loaded value is in `values`, or return `answer`."""
    tests = [(_IF_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, answer)]
