"""The statuses as type checkers know them; at run time the library has the only list."""

from enum import IntEnum

class Status(IntEnum):
    OK = 0
    IN_PROGRESS = 1
    AGAIN = -1
    INVALID_ARGUMENT = -2
    OUT_OF_RANGE = -3
    NOT_FOUND = -4
    ALREADY_EXISTS = -5
    PERMISSION_DENIED = -6
    MISMATCH = -7
    LIMIT_EXCEEDED = -8
    OUT_OF_MEMORY = -9
    NO_SPACE = -10
    UNSUPPORTED = -11
    BUSY = -12
    CANCELLED = -13
    TIMED_OUT = -14
    PEER_LOST = -15
    PEER_RESTARTED = -16
    STALE = -17
    PROTOCOL = -18
    CORRUPT = -19
    IO = -20
    FORKED = -21
    CLOSED = -22
    NO_ROUTE = -23
    UNREACHABLE = -24
    ADDRESS_IN_USE = -25
    SHORT = -26
    INTERNAL = -27
    NOT_YET = -28
