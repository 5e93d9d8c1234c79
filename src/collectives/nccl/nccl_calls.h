// One operation as calls of NCCL's.
#pragma once

#include <functional>

#include "collectives/calls/call.h"
#include "collectives/nccl/nccl_api.h"

namespace towline::collectives::nccl {

// Throws Error(kUnsupported) for what NCCL cannot do, which every rank sees alike.
void check_supported(const towline_collective_t& call, int version);

// Memory of the GPU that operations in one communicator use in turn: at least so many bytes. Throws Error.
using Room = std::function<void*(uint64_t)>;

// Enqueues an operation that was checked. The result is NCCL's. Every rank makes the same calls, wherever its parts lie:
// lists of parts that do not stand side by side travel through `room`.
Result enqueue(const Api& api, Comm comm, const towline_collective_t& call, const Call& parts, int rank,
               int size, const Room& room, Stream stream);
// A send or a receive.
Result enqueue_message(const Api& api, Comm comm, const towline_collective_t& call, Stream stream);

}  // namespace towline::collectives::nccl
