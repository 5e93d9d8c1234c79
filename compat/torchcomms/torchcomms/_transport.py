"""torchcomms' RDMA transport between pairs: not here, and said so. `towline.Agent` moves memory between processes."""

_WHY = "there is no RdmaTransport in this package: towline.Agent reads and writes the memory of other processes, over RDMA where it has it"


def _missing(name: str) -> type:
    def refuse(self, *_: object) -> None:
        raise RuntimeError(_WHY)

    return type(name, (), {"__init__": refuse, "__module__": "torchcomms._transport"})


class RdmaTransport(_missing("RdmaTransport")):
    @staticmethod
    def supported() -> bool:
        return False


RdmaMemory = _missing("RdmaMemory")
RdmaMemoryView = _missing("RdmaMemoryView")
RdmaMemoryMutableView = _missing("RdmaMemoryMutableView")
RdmaRemoteBuffer = _missing("RdmaRemoteBuffer")
