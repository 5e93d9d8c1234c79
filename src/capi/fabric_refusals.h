// The sentences of towline_last_error for transfers of the fabric that are refused. The engine answers a status alone, since
// it formats nothing while it holds its lock.
#pragma once

#include <span>
#include <string>

#include "fabric/transfer_engine.h"

namespace towline::capi {

// Those that any call may get.
std::string why_refused(Status status, Handle peer, const fabric::TransferOptions& options);
std::string why_single_refused(Status status, fabric::TransferOp op, const fabric::ScatterPart& part,
                               const fabric::TransferOptions& options);
std::string why_pages_refused(Status status, fabric::TransferOp op, Handle peer,
                              const fabric::PageList& pages, const fabric::TransferOptions& options);
std::string why_scatter_refused(Status status, std::span<const fabric::ScatterPart> parts,
                                const fabric::TransferOptions& options);
// Of a send or a receive.
std::string why_message_refused(Status status, Handle peer, const fabric::LocalMemory& local, uint64_t offset,
                                uint64_t bytes, const fabric::TransferOptions& options);
std::string why_group_refused(Status status, uint32_t group, const fabric::TransferOptions& options);
std::string why_barrier_refused(Status status, uint32_t group, uint32_t immediate,
                                const fabric::TransferOptions& options);

}  // namespace towline::capi
