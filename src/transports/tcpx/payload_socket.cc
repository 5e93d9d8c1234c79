#include "transports/tcpx/payload_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include <fmt/format.h>

#include "base/copy/copy.h"
#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {

using framing::IoResult;

void PayloadSocket::attach(UniqueFd socket, std::unique_ptr<Source> source) {
  linear_ = std::make_unique_for_overwrite<uint8_t[]>(kLinearBytes);
  for (const Pool& pool : source->pools()) reader_ = pool.reader;
  if (reader_ != nullptr) fetched_ = std::make_unique_for_overwrite<uint8_t[]>(kLinearBytes);
  source_ = std::move(source);
  socket_ = std::move(socket);
}

// The source may hold the socket for longer, for the sake of its tokens.
void PayloadSocket::close() noexcept {
  if (!open()) return;
  ::shutdown(socket_.get(), SHUT_RDWR);
  ending_ = true;
  (void)returned();
}

void PayloadSocket::abandon() noexcept {
  if (!socket_.valid()) return;
  const linger reset = {1, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (lending()) LentWrites::drop(socket_.get());
  close();
  (void)returned();
}

// What the kernel still reads holds the socket open: its reports come there.
uint64_t PayloadSocket::returned() noexcept {
  const bool copied = sender_.copied();
  const uint64_t returned = lending() ? sender_.returned(socket_.get()) : sender_.lent();
  if (sender_.copied() && !copied) count(&FlowTotals::bound_copied, 1);
  if (ending_ && !lending()) socket_.reset();
  return returned;
}

std::string PayloadSocket::describe() const {
  if (source_ == nullptr) return "payload flow is coming up";
  return fmt::format("payload by {}: {} fragments of {} bytes, {} linear, {} copied, {} dry, {} held",
                     source_->name(), statistics_.fragments.load(), statistics_.fragment_bytes.load(),
                     statistics_.linear_bytes.load(), statistics_.copied_bytes.load(), statistics_.dry.load(),
                     held_);
}

IoResult PayloadSocket::write(std::span<const iovec> pieces) noexcept {
  if (!open()) return IoResult::closed();
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  std::size_t offered = 0;
  for (const iovec& piece : pieces) offered += piece.iov_len;
  const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  wants_write_ = n < static_cast<ssize_t>(offered);
  if (n <= 0) return socket_failure(errno);
  count(&FlowTotals::sent_bytes, static_cast<uint64_t>(n));
  return IoResult::moved(static_cast<std::size_t>(n));
}

IoResult PayloadSocket::write_from(std::span<const iovec> pieces) noexcept {
  if (!open()) return IoResult::closed();
  const IoResult result = sender_.write(socket_.get(), pieces);
  if (result.status == Status::kOk) count(&FlowTotals::bound_bytes, result.bytes);
  wants_write_ = result.status == Status::kAgain && !lending();
  return result;
}

void PayloadSocket::count(std::atomic<uint64_t> FlowTotals::*which, uint64_t by) noexcept {
  (statistics_.*which).fetch_add(by, std::memory_order_relaxed);
  if (totals_ != nullptr) (totals_->*which).fetch_add(by, std::memory_order_relaxed);
}

void PayloadSocket::count_held(uint32_t more, uint32_t fewer) noexcept {
  held_ += more - fewer;
  count(&FlowTotals::held, uint64_t{more} - fewer);  // a sum of both signs comes out right
}

// ---- receiving

Polled PayloadSocket::poll(std::size_t most) noexcept {
  if (!open()) return {source_ == nullptr ? IoResult::again() : IoResult::closed(), 0, false};
  most = std::min(most, kLinearBytes);
  Polled polled = source_->poll(linear_.get(), most, polled_);
  wants_read_ = polled.io.status == Status::kAgain;
  if (polled.dry) count(&FlowTotals::dry, 1);
  if (polled.io.status != Status::kOk) return polled;
  uint32_t taken = 0;
  for (uint32_t i = 0; i < polled.count; ++i) taken += polled_[i].linear ? 0 : 1;
  count_held(taken, 0);
  if (const char* wrong = check(polled, most)) {
    give_back({polled_.data(), polled.count});
    return {IoResult::error(Status::kProtocol, 0, wrong), 0, false};
  }
  uint64_t linear = 0;
  for (uint32_t i = 0; i < polled.count; ++i) linear += polled_[i].linear ? polled_[i].bytes : 0;
  count(&FlowTotals::fragments, polled.count);
  count(&FlowTotals::linear_bytes, linear);
  count(&FlowTotals::fragment_bytes, polled.io.bytes - linear);
  return polled;
}

// Drivers and kernels describe fragments: nothing outside of a pool is read for what they say.
const char* PayloadSocket::check(const Polled& polled, std::size_t most) const noexcept {
  const std::span<const Pool> pools = source_->pools();
  std::size_t total = 0;
  for (uint32_t i = 0; i < polled.count; ++i) {
    const Fragment& fragment = polled_[i];
    if (fragment.bytes > most - total) return "fragments longer than what was asked for";
    total += fragment.bytes;
    if (fragment.linear) continue;
    if (fragment.pool >= pools.size()) return "a fragment of an unknown pool";
    const Pool& pool = pools[fragment.pool];
    if (fragment.bytes > pool.bytes || fragment.offset > pool.bytes - fragment.bytes)
      return "a fragment beyond the end of its pool";
  }
  return total == polled.io.bytes ? nullptr : "fragments that don't add up to what was received";
}

const uint8_t* PayloadSocket::bytes_of(const Fragment& fragment, Place& place) const noexcept {
  if (!fragment.linear && reader_ == nullptr) return source_->pools()[fragment.pool].memory + fragment.offset;
  std::size_t& at = fragment.linear ? place.linear : place.fetched;
  at += fragment.bytes;
  return (fragment.linear ? linear_ : fetched_).get() + at - fragment.bytes;
}

// ---- pools on a GPU

bool PayloadSocket::in_pool(uint64_t address) const noexcept {
  for (const Pool& pool : source_->pools())
    if (address - reinterpret_cast<uint64_t>(pool.memory) < pool.bytes) return true;
  return false;
}

// Reads the pieces that to_read_ names.
IoResult PayloadSocket::read_pool(uint8_t* to) noexcept {
  if (to_read_.empty()) return IoResult::moved(0);
  uint64_t bytes = 0;
  for (const towline_landing_piece& piece : to_read_) bytes += piece.bytes;
  int32_t vendor_code = 0;
  const Status status = reader_->read(to_read_, to, vendor_code);
  to_read_.clear();
  if (status != Status::kOk)
    return IoResult::error(Status::kIo, vendor_code, "reading payload from a GPU failed");
  count(&FlowTotals::fetched_bytes, bytes);
  return IoResult::moved(bytes);
}

// Brings the first fragments that were polled to where the processor reads them.
IoResult PayloadSocket::fetch(uint32_t count) noexcept {
  if (reader_ == nullptr) return IoResult::moved(0);
  to_read_.clear();
  for (uint32_t i = 0; i < count; ++i)
    if (!polled_[i].linear)
      to_read_.push_back(
          {reinterpret_cast<uint64_t>(source_->pools()[polled_[i].pool].memory) + polled_[i].offset,
           polled_[i].bytes});
  return read_pool(fetched_.get());
}

void PayloadSocket::give_back(std::span<const Fragment> fragments) noexcept {
  released_.clear();
  for (const Fragment& fragment : fragments)
    if (!fragment.linear) released_.push_back(fragment.token);  // within its capacity
  count_held(0, static_cast<uint32_t>(released_.size()));
  if (!released_.empty()) source_->release(released_);
}

// For a source without a pool: bytes go to their destination directly.
IoResult PayloadSocket::read_linear(std::span<const iovec> pieces) noexcept {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  const IoResult result = n > 0    ? IoResult::moved(static_cast<std::size_t>(n))
                          : n == 0 ? IoResult::closed()
                                   : socket_failure(errno);
  wants_read_ = result.status == Status::kAgain;
  if (n > 0) {
    count(&FlowTotals::fragments, 1);
    count(&FlowTotals::linear_bytes, static_cast<uint64_t>(n));
  }
  return result;
}

IoResult PayloadSocket::read(std::span<const iovec> pieces) noexcept {
  if (open() && source_->pools().empty()) return read_linear(pieces);
  std::size_t most = 0;
  for (const iovec& piece : pieces) most += piece.iov_len;
  const Polled polled = poll(most);
  if (polled.io.status != Status::kOk) return polled.io;
  if (const IoResult fetched = fetch(polled.count); fetched.status != Status::kOk) {
    give_back({polled_.data(), polled.count});
    return fetched;
  }
  Place place;
  std::size_t at = 0;  // in the piece
  for (uint32_t i = 0; i < polled.count; ++i) {
    const uint8_t* from = bytes_of(polled_[i], place);
    for (std::size_t left = polled_[i].bytes; left != 0;) {
      const std::size_t here = std::min(left, pieces.front().iov_len - at);
      copy_bytes(static_cast<uint8_t*>(pieces.front().iov_base) + at, from, here);
      from += here;
      left -= here;
      at += here;
      if (at != pieces.front().iov_len) continue;
      pieces = pieces.subspan(1);
      at = 0;
    }
  }
  give_back({polled_.data(), polled.count});
  return polled.io;
}

IoResult PayloadSocket::drop(std::size_t bytes) noexcept {
  const Polled polled = poll(bytes);
  if (polled.io.status == Status::kOk) give_back({polled_.data(), polled.count});
  return polled.io;
}

// ---- for GPU memory

void PayloadSocket::offer(framing::Lander& lander, uint64_t device) noexcept {
  if ((offered_ == &lander && offered_device_ == device) || source_ == nullptr) return;
  offered_ = &lander;
  offered_device_ = device;
  reachable_ = keep_fragments_;
  for (const Pool& pool : source_->pools()) {
    if (pool.reader != nullptr)
      reachable_ = reachable_ && pool.reader->device() == device && pool.reader->reach(lander) == Status::kOk;
    else
      reachable_ = reachable_ && pool.pinnable && lander.reach(pool.memory, pool.bytes) == Status::kOk;
  }
}

bool PayloadSocket::holds_much() const noexcept { return held_ > source_->tokens() / 2; }

// Tokens of the list go back where too many are held, or the pool is dry.
IoResult PayloadSocket::make_room(List& list, const Polled& polled) noexcept {
  const bool came = polled.io.status == Status::kOk;
  if (!polled.dry && !(came && (!reachable_ || holds_much()))) return IoResult::moved(0);
  return copy_out(list);
}

IoResult PayloadSocket::collect(uint32_t slot, uint8_t* staging, std::size_t bytes) noexcept {
  List& list = lists_[slot];
  if (list.bytes == 0) list.staging = staging;
  if (open() && source_->pools().empty()) {
    uint8_t* const to = list.staging + list.bytes;
    const iovec piece = {to, bytes};
    const IoResult received = read_linear({&piece, 1});
    if (received.status == Status::kOk)
      keep(list, {0, static_cast<uint32_t>(received.bytes), 0, 0, true}, to);
    return received;
  }
  if (list.pieces.size() + kMostPolled > kMostPieces) {
    if (const IoResult copied = copy_out(list); copied.status != Status::kOk) return copied;
  }
  const Polled polled = poll(bytes);
  IoResult failed = make_room(list, polled);
  if (polled.io.status != Status::kOk) return failed.status != Status::kOk ? failed : polled.io;
  // Tokens left over the limit are held by frames that a GPU is copying.
  const bool copies = !reachable_ || holds_much();
  if (copies && failed.status == Status::kOk) failed = fetch(polled.count);
  if (failed.status != Status::kOk) {
    give_back({polled_.data(), polled.count});
    return failed;
  }
  Place place;
  for (uint32_t i = 0; i < polled.count; ++i) {
    const Fragment& fragment = polled_[i];
    if (copies || fragment.linear) {
      uint8_t* const to = list.staging + list.bytes;
      copy_bytes(to, bytes_of(fragment, place), fragment.bytes);
      if (!fragment.linear) count(&FlowTotals::copied_bytes, fragment.bytes);
      keep(list, fragment, to);
    } else {
      keep(list, fragment, source_->pools()[fragment.pool].memory + fragment.offset);
      list.tokens.push_back(fragment.token);  // within its capacity
      count(&FlowTotals::kept_bytes, fragment.bytes);
    }
  }
  if (copies) give_back({polled_.data(), polled.count});
  return polled.io;
}

// Joined to the last piece where it goes on from there.
void PayloadSocket::keep(List& list, const Fragment& fragment, const uint8_t* at) noexcept {
  const auto address = reinterpret_cast<uint64_t>(at);
  if (!list.pieces.empty() && list.pieces.back().address + list.pieces.back().bytes == address)
    list.pieces.back().bytes += fragment.bytes;
  else
    list.pieces.push_back({address, fragment.bytes});  // within its capacity
  list.bytes += fragment.bytes;
}

// Copies all that has come of the frame to its place in staging memory. Payload in a GPU's memory is read in stretches.
IoResult PayloadSocket::copy_out(List& list) noexcept {
  if (list.tokens.empty() && list.pieces.size() <= 1) return IoResult::moved(0);
  uint8_t* to = list.staging;
  uint8_t* read_to = to;
  to_read_.clear();
  for (const towline_landing_piece& piece : list.pieces) {
    const auto* const from = reinterpret_cast<const uint8_t*>(piece.address);
    if (reader_ != nullptr && in_pool(piece.address)) {
      if (to_read_.empty()) read_to = to;
      to_read_.push_back(piece);  // within its capacity
      count(&FlowTotals::copied_bytes, piece.bytes);
    } else {
      if (const IoResult read = read_pool(read_to); read.status != Status::kOk) return read;
      if (from != to) {
        copy_bytes(to, from, piece.bytes);
        count(&FlowTotals::copied_bytes, piece.bytes);
      }
    }
    to += piece.bytes;
  }
  if (const IoResult read = read_pool(read_to); read.status != Status::kOk) return read;
  list.pieces.clear();
  list.pieces.push_back({reinterpret_cast<uint64_t>(list.staging), list.bytes});
  count_held(0, static_cast<uint32_t>(list.tokens.size()));
  source_->release(list.tokens);
  list.tokens.clear();
  return IoResult::moved(0);
}

void PayloadSocket::release(uint32_t slot) noexcept {
  List& list = lists_[slot];
  count_held(0, static_cast<uint32_t>(list.tokens.size()));
  if (!list.tokens.empty()) source_->release(list.tokens);
  list.tokens.clear();
  list.pieces.clear();
  list.bytes = 0;
}

}  // namespace towline::tcpx
