// One message over a pipe, in either direction, without blocking: a prefix that identifies its operation, and
// the data, which is read directly into its destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/os/stream.h"
#include "collectives/calls/call.h"

namespace towline::collectives {

struct PipePrefix {
  Header header;
  uint64_t bytes = 0;
};
static_assert(sizeof(PipePrefix) == 40);

enum class PipeStep : uint8_t {
  kMoved,    // some bytes moved
  kBlocked,  // no byte can move now, or it is done
  kLost,     // the connection has ended
};

// Over no stream: nothing to do.
class PipeSend {
 public:
  PipeSend(Stream* stream, const Header& header, std::span<const uint8_t> data) noexcept
      : stream_(stream),
        prefix_{header, data.size()},
        data_(data),
        left_(stream == nullptr ? 0 : sizeof prefix_ + data.size()) {}
  bool done() const noexcept { return left_ == 0; }
  PipeStep step() noexcept;

 private:
  Stream* stream_;
  PipePrefix prefix_;
  std::span<const uint8_t> data_;
  size_t left_;
};

class PipeReceive {
 public:
  PipeReceive(Stream* stream, std::span<uint8_t> data) noexcept
      : stream_(stream), data_(data), left_(stream == nullptr ? 0 : sizeof prefix_ + data.size()) {}
  bool done() const noexcept { return left_ == 0; }
  // True if the prefix has arrived. If it is not the expected one, the data read so far is meaningless.
  bool headed() const noexcept { return left_ <= data_.size(); }
  const PipePrefix& prefix() const noexcept { return prefix_; }
  PipeStep step() noexcept;

 private:
  Stream* stream_;
  PipePrefix prefix_;
  std::span<uint8_t> data_;
  size_t left_;
};

}  // namespace towline::collectives
