"""Towline moves AI state between memories, across processes and hosts.

    agent = towline.Agent("decode-0")
    region = agent.register(kv_cache)
    peer = await agent.connect("10.0.0.7:7777")
    move = agent.read(mine, my_pages, theirs, their_pages, notice=b"req-17")
    await move

Any thread may call anything. What fails raises a subclass of `towline.Error`, which knows its `status`. Times are
seconds. NumPy, torch and asyncio are imported when they are first needed.
"""

from ._agent import Agent, Connecting
from ._core import Blocks, BlockList, Counter, Directory, DirectoryCall, Memory, Notice, Peer, Region, RegionInfo, Replays, Result, Transfer, Watch
from ._core import version as __version__
from ._errors import (
    AddressInUse,
    Again,
    Busy,
    Cancelled,
    Closed,
    Corrupt,
    Error,
    Forked,
    InvalidArgument,
    IoError,
    LimitExceeded,
    Mismatch,
    NoRoute,
    NotFound,
    OutOfMemory,
    OutOfRange,
    PeerLost,
    PeerRestarted,
    PermissionDenied,
    ProtocolError,
    Short,
    Stale,
    Status,
    TimedOut,
    Unreachable,
    Unsupported,
)
from ._storage import StorageInfo

__all__ = [
    "AddressInUse",
    "Again",
    "Agent",
    "BlockList",
    "Blocks",
    "Busy",
    "Cancelled",
    "Closed",
    "Connecting",
    "Corrupt",
    "Counter",
    "Directory",
    "DirectoryCall",
    "Error",
    "Forked",
    "InvalidArgument",
    "IoError",
    "LimitExceeded",
    "Memory",
    "Mismatch",
    "NoRoute",
    "NotFound",
    "Notice",
    "OutOfMemory",
    "OutOfRange",
    "Peer",
    "PeerLost",
    "PeerRestarted",
    "PermissionDenied",
    "ProtocolError",
    "Region",
    "RegionInfo",
    "Replays",
    "Result",
    "Short",
    "Stale",
    "Status",
    "StorageInfo",
    "TimedOut",
    "Transfer",
    "Unreachable",
    "Unsupported",
    "Watch",
]
