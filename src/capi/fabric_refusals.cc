#include "capi/fabric_refusals.h"

#include <fmt/format.h>

#include "fabric/transfer_engine_state.h"

namespace towline::capi {
namespace {

using fabric::fits;
using fabric::TransferOp;

std::string beyond(uint64_t offset, uint64_t length, const char* whose, uint64_t bytes) {
  return fmt::format("{} bytes from offset {} on are out of range for {} memory of {} bytes", length, offset,
                     whose, bytes);
}

std::string not_permitted(TransferOp op) {
  const bool writes = op == TransferOp::kWrite;
  return fmt::format("the peer registered this memory without access to {} it: register it there as {}",
                     writes ? "write" : "read", writes ? "writable" : "readable");
}

// The first page of a side that is out of range; empty: none is.
std::string page_beyond(std::span<const uint32_t> pages, uint64_t page_bytes, uint64_t stride,
                        uint64_t offset, const char* whose, uint64_t bytes) {
  if (stride == 0) stride = page_bytes;
  for (const uint32_t page : pages) {
    if (!fabric::pages_fit({&page, 1}, page_bytes, stride, offset, bytes))
      return fmt::format(
          "page {} of {} bytes is out of range for {} memory of {} bytes (stride {}, offset {})", page,
          page_bytes, whose, bytes, stride, offset);
  }
  return {};
}

}  // namespace

std::string why_refused(Status status, Handle peer, const fabric::TransferOptions& options) {
  const std::size_t longest = fabric::EngineOptions{}.record_bytes - sizeof(fabric::RecordHeader);
  switch (status) {
    case Status::kStale:
      return fmt::format("peer {} is not connected: connect() has not returned it, or it was disconnected",
                         peer.to_u64());
    case Status::kPeerLost:
      return "the peer was lost before: disconnect it, and connect to its address anew";
    case Status::kAgain:
      return "too many transfers are under way, or have ended and are not released: wait for some of them";
    case Status::kLimitExceeded:
      return fmt::format("a message of {} bytes is too long: at most {}", options.message.size(), longest);
    case Status::kInvalidArgument:
      if (options.count == 0 && !options.has_message)
        return "neither bytes, a count nor a message: nothing to do";
      break;
    default:
      break;
  }
  return status_text(status);
}

std::string why_single_refused(Status status, TransferOp op, const fabric::ScatterPart& part,
                               const fabric::TransferOptions& options) {
  if (status == Status::kPermissionDenied) return not_permitted(op);
  if (status == Status::kInvalidArgument && part.bytes == 0)
    return "0 bytes: a transfer moves at least one; signal() counts without bytes";
  if (status == Status::kOutOfRange)
    return fits(part.local_offset, part.bytes, part.local->bytes)
               ? beyond(part.remote_offset, part.bytes, "the peer's", part.remote->bytes)
               : beyond(part.local_offset, part.bytes, "local", part.local->bytes);
  return why_refused(status, part.peer, options);
}

std::string why_pages_refused(Status status, TransferOp op, Handle peer, const fabric::PageList& pages,
                              const fabric::TransferOptions& options) {
  if (status == Status::kPermissionDenied) return not_permitted(op);
  if (status == Status::kInvalidArgument)
    return pages.page_bytes == 0 ? "page_bytes is 0"
                                 : "no pages: a transfer moves at least one; signal() counts without bytes";
  if (status == Status::kOutOfRange) {
    std::string why = page_beyond(pages.local_pages, pages.page_bytes, pages.local_stride, pages.local_offset,
                                  "local", pages.local->bytes);
    if (why.empty())
      why = page_beyond(pages.remote_pages, pages.page_bytes, pages.remote_stride, pages.remote_offset,
                        "the peer's", pages.remote->bytes);
    if (!why.empty()) return why;
  }
  return why_refused(status, peer, options);
}

std::string why_scatter_refused(Status status, std::span<const fabric::ScatterPart> parts,
                                const fabric::TransferOptions& options) {
  if (parts.empty()) return "no parts";
  if (status == Status::kLimitExceeded && options.count > UINT32_MAX / parts.size())
    return fmt::format("each part counts {}, and those of one peer count at most {} together", options.count,
                       UINT32_MAX);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const fabric::ScatterPart& part = parts[i];
    if (part.bytes == 0) continue;
    if (part.local == nullptr || part.remote == nullptr)
      return fmt::format("part {} has {} bytes and no {} memory", i, part.bytes,
                         part.local == nullptr ? "local" : "remote");
    const bool inside = fits(part.local_offset, part.bytes, part.local->bytes) &&
                        fits(part.remote_offset, part.bytes, part.remote->bytes);
    if ((status == Status::kOutOfRange && !inside) ||
        (status == Status::kPermissionDenied && !part.remote->writable))
      return fmt::format("part {}: {}", i, why_single_refused(status, TransferOp::kWrite, part, options));
  }
  return why_refused(status, parts.front().peer, options);
}

std::string why_message_refused(Status status, Handle peer, const fabric::LocalMemory& local, uint64_t offset,
                                uint64_t bytes, const fabric::TransferOptions& options) {
  if (status == Status::kOutOfRange) return beyond(offset, bytes, "local", local.bytes);
  if (status == Status::kPermissionDenied)
    return "memory that receives is written by the peer: register it as writable";
  if (status == Status::kInvalidArgument) return "a send has no count and no message of its own";
  return why_refused(status, peer, options);
}

std::string why_group_refused(Status status, uint32_t group, const fabric::TransferOptions& options) {
  if (status == Status::kStale)
    return fmt::format("group {} does not exist, or one of its barriers has failed: make another one", group);
  return why_refused(status, {}, options);
}

std::string why_barrier_refused(Status status, uint32_t group, uint32_t immediate,
                                const fabric::TransferOptions& options) {
  if (status == Status::kInvalidArgument)
    return options.count != 0 || options.has_message
               ? "a barrier has no count and no message of its own"
               : fmt::format("barriers of group {} had another immediate than {} before", group, immediate);
  return why_group_refused(status, group, options);
}

}  // namespace towline::capi
