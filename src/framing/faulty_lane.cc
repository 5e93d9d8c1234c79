#include "framing/faulty_lane.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace towline::framing {

FaultyLane::FaultyLane(std::unique_ptr<Lane> inner, const FaultOptions& options,
                       std::function<uint64_t()> now_ns)
    : inner_(std::move(inner)), options_(options), now_ns_(std::move(now_ns)), random_(options.seed) {
  pieces_.reserve(IOV_MAX);
}

IoResult FaultyLane::write(std::span<const iovec> pieces) noexcept {
  return call(&Lane::write, pieces, write_paused_until_);
}

IoResult FaultyLane::write_lent(std::span<const iovec> pieces) noexcept {
  return call(&Lane::write_lent, pieces, write_paused_until_);
}

IoResult FaultyLane::read(std::span<const iovec> pieces) noexcept {
  return call(&Lane::read, pieces, read_paused_until_);
}

IoResult FaultyLane::call(Method method, std::span<const iovec> pieces, uint64_t& paused_until) noexcept {
  if (cut_) return IoResult::error(Status::kPeerLost, ECONNRESET, "cut by the fault injector");
  const uint64_t now = options_.delay > 0 ? now_ns_() : 0;
  if (now < paused_until) return IoResult::again();
  if (options_.delay > 0 && random_.chance(options_.delay)) {
    paused_until = now + 1 + random_.below(options_.delay_ns);
    return IoResult::again();
  }
  if (random_.chance(options_.shorten)) {
    std::size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    // Often a few bytes only, so that every boundary is met.
    pieces =
        shortened(pieces, 1 + random_.below(random_.chance(0.5) ? std::min<std::size_t>(bytes, 100) : bytes));
  }
  const IoResult result = (inner_.get()->*method)(pieces);
  moved_ += result.bytes;
  const bool far_enough = options_.cut_after_bytes != 0 && moved_ >= options_.cut_after_bytes;
  if (far_enough || random_.chance(options_.cut)) {  // reports the moved bytes; the next call fails
    cut_ = true;
    inner_->close();
  }
  return result;
}

std::span<const iovec> FaultyLane::shortened(std::span<const iovec> pieces, std::size_t bytes) noexcept {
  pieces_.clear();
  for (const iovec& piece : pieces) {
    const std::size_t here = std::min(piece.iov_len, bytes);
    if (here == 0) break;
    pieces_.push_back({piece.iov_base, here});
    bytes -= here;
  }
  return pieces_;
}

bool FaultyLane::arm(bool want_write) noexcept {
  if (cut_) return true;
  const uint64_t now = now_ns_();
  if (now < read_paused_until_ || (want_write && now < write_paused_until_)) return true;
  return inner_->arm(want_write);
}

std::string FaultyLane::describe() const {
  return "faulty (" + to_text(options_) + ") " + inner_->describe();
}

}  // namespace towline::framing
