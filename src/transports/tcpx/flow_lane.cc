#include "transports/tcpx/flow_lane.h"

#include <sys/epoll.h>

#include <fmt/format.h>

namespace towline::tcpx {

FlowLane::FlowLane(const plugin::Host& host, uint32_t worker, Stream stream, bool first, uint32_t frame_bytes,
                   const std::string& congestion, towline_ready_fn ready, void* argument,
                   uint32_t least_bytes, bool keep_fragments, FlowTotals* totals, BoundMemory* bound)
    : host_(host),
      worker_(worker),
      ready_(ready),
      argument_(argument),
      stream_(host, worker, std::move(stream), first, frame_bytes, congestion, ready, argument),
      payload_(least_bytes, keep_fragments, totals, bound) {}

framing::IoResult FlowLane::write(std::span<const iovec> pieces) noexcept {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  const framing::IoResult result = stream_.write(pieces);
  stream_wants_write_ = result.status == Status::kAgain || result.bytes < bytes;
  return result;
}

// Each socket is watched only for events that the lane waits for: payload without its header would wake it for nothing, and so
// would a socket that has room when the other has not. A socket that has lent memory is watched in any case: the report that
// it is free again wakes us.
bool FlowLane::arm(bool want_write) noexcept {
  if (stream_.arm(want_write && stream_wants_write_)) return true;
  if (!payload_.open()) return false;
  const uint32_t read = payload_.wants_read() ? uint32_t{EPOLLIN} : 0;
  const uint32_t write = want_write && payload_.wants_write() ? uint32_t{EPOLLOUT} : 0;
  const int readable = payload_.read_descriptor();
  if (readable == payload_.descriptor()) return watch(readable, read | write, socket_);
  const bool both = watch(readable, read, source_);
  return watch(payload_.descriptor(), write, socket_) || both;
}

bool FlowLane::watch(int fd, uint32_t wanted, Watched& watched) noexcept {
  if (wanted == watched.events && (watched.known || !payload_.lending())) return false;
  const int32_t status = watched.known ? host_.rewatch(worker_, fd, wanted, ready_, argument_)
                                       : host_.watch(worker_, fd, wanted, ready_, argument_);
  if (status != TOWLINE_OK) return true;  // never sleep on a socket that can't wake us
  watched = {true, wanted};
  return false;
}

void FlowLane::unwatch() noexcept {
  if (source_.known) host_.unwatch(worker_, payload_.read_descriptor());
  if (socket_.known && payload_.open()) host_.unwatch(worker_, payload_.descriptor());
  source_ = socket_ = {};
}

void FlowLane::close() noexcept {
  unwatch();
  payload_.close();
  stream_.close();
}

void FlowLane::abandon() noexcept {
  unwatch();
  payload_.abandon();
  stream_.abandon();
}

std::string FlowLane::describe() const {
  return fmt::format("{}, {}", stream_.describe(), payload_.describe());
}

}  // namespace towline::tcpx
