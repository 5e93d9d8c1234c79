#include "metadata/listener/exchange.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/error.h"
#include "base/os/stream.h"
#include "metadata/listener/wire.h"

namespace towline::metadata {
namespace {

constexpr std::size_t kMaxReplyBytes = 64u << 20;
constexpr std::size_t kReplyReadBytes = 1u << 20;

constexpr uint64_t kStopLookNs = 100 * kMillisecondNs;

struct Limits {
  Deadline deadline;
  const std::atomic<bool>* stop;  // null: it can't be stopped
};

// Waits until the stream is ready; throws Error(kTimedOut) at the deadline, Error(kClosed) when it is stopped.
short wait_ready(const Stream& stream, short events, const Limits& limits, const std::string& what) {
  for (;;) {
    if (limits.stop != nullptr && limits.stop->load(std::memory_order_relaxed))
      fail(Status::kClosed, "{}: this agent was closed", what);
    const uint64_t look_ns =
        limits.stop == nullptr ? kNoDeadline : Deadline::after(monotonic_now_ns(), kStopLookNs).ns();
    const Deadline until = Deadline::at(std::min(limits.deadline.ns(), look_ns));
    if (const short found = stream.wait(events, until); found != 0) return found;
    if (limits.deadline.passed(monotonic_now_ns())) fail(Status::kTimedOut, "{}: the deadline passed", what);
  }
}

Stream connect_to(const SocketAddress& address, const Limits& limits, const std::string& what) {
  const Deadline deadline = limits.deadline;
  Stream stream = Stream::open(address.family());
  int error = stream.start_connect(address);
  if (error == EINPROGRESS) {
    (void)wait_ready(stream, POLLOUT, limits, what);
    error = stream.finish_connect();
  }
  // EAGAIN: a Unix socket whose queue is full, which only time cures.
  if (error == EAGAIN) fail(Status::kUnreachable, "{}: its queue of connections is full", what);
  if (error == ETIMEDOUT && deadline.passed(monotonic_now_ns()))
    fail(Status::kTimedOut, "{}: the deadline passed", what);
  if (error != 0) fail(Status::kUnreachable, "{}: {}", what, errno_text(error));
  return stream;
}

void shake_hands(const secure::MaybeKeys& keys, Stream& stream, const Limits& limits,
                 const std::string& what) {
  secure::secure(keys, stream, secure::Side::kCaller);
  for (;;) {
    const StreamResult shaken = stream.shake_hands();
    if (shaken.moved()) return;
    if (shaken.over())
      fail(shaken.refused() ? Status::kPermissionDenied : Status::kUnreachable, "{}: {}", what,
           stream.failure(shaken));
    (void)wait_ready(stream, POLLIN, limits, what);
  }
}

// The conversation on one connected socket: sends while it can, and receives all the while, since a refusal
// may come before everything is sent.
class Conversation {
 public:
  Conversation(Stream stream, std::span<const uint8_t> own, const Limits& limits, const std::string& what)
      : stream_(std::move(stream)), own_(own), limits_(limits), what_(what) {
    wire::ExchangeHeader request;
    request.bytes = static_cast<uint32_t>(own.size());
    request_ = wire::pack(request);
  }

  std::vector<uint8_t> run() {
    while (!finished()) {
      const bool sending = sent_ < request_.size() + own_.size();
      const short ready = wait_ready(stream_, sending ? POLLIN | POLLOUT : POLLIN, limits_, what_);
      if (sending && (ready & POLLOUT) != 0) send();
      if ((ready & (POLLIN | POLLERR | POLLHUP)) != 0) receive();
    }
    if (reply_.status == 0) return std::move(body_);
    std::string text(body_.begin(), body_.end());
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; },
        '?');
    fail(static_cast<Status>(reply_.status), "{}: refused: {}", what_, text);
  }

 private:
  [[nodiscard]] bool finished() const noexcept {
    return header_bytes_ == header_.size() && body_.size() == reply_.bytes;
  }

  void send() {
    const std::size_t body_sent = sent_ - std::min(sent_, request_.size());
    iovec pieces[2];
    std::size_t count = 0;
    if (sent_ < request_.size()) pieces[count++] = {request_.data() + sent_, request_.size() - sent_};
    if (body_sent < own_.size()) {
      pieces[count++] = {const_cast<uint8_t*>(own_.data()) + body_sent, own_.size() - body_sent};
    }
    const StreamResult result = stream_.write({pieces, count});
    sent_ += result.bytes;
    if (result.over()) sent_ = request_.size() + own_.size();  // the answer may say why
  }

  void receive() {
    const bool in_header = header_bytes_ < header_.size();
    const std::size_t have = body_.size();
    if (!in_header) body_.resize(have + std::min<std::size_t>(reply_.bytes - have, kReplyReadBytes));
    uint8_t* const to = in_header ? header_.data() + header_bytes_ : body_.data() + have;
    const std::size_t want = in_header ? header_.size() - header_bytes_ : body_.size() - have;
    const StreamResult got = stream_.read(to, want);
    if (!in_header) body_.resize(have + got.bytes);
    if (got.blocked()) return;
    if (got.over() && secure::looks_like_tls({header_.data(), header_bytes_}))
      fail(Status::kPermissionDenied,
           "{}: it takes TLS connections only, and this side has no keys (secure.*)", what_);
    if (got.kind == StreamResult::Kind::kEnded)
      fail(Status::kProtocol, "{}: closed without a whole answer; is it a Towline agent?", what_);
    if (got.over())
      fail(got.refused() ? Status::kPermissionDenied : Status::kUnreachable, "{}: receiving: {}", what_,
           stream_.failure(got));
    if (!in_header) return;
    header_bytes_ += got.bytes;
    if (header_bytes_ == header_.size()) check_reply();
  }

  void check_reply() {
    if (!wire::unpack(header_, reply_))
      fail(Status::kProtocol, "{}: who answers there is no Towline agent", what_);
    const bool known = reply_.status <= 0 && reply_.status >= static_cast<int32_t>(Status::kInternal);
    if (!known) fail(Status::kProtocol, "{}: answered with the unknown status {}", what_, reply_.status);
    if (reply_.status == 0 && reply_.major != wire::kExchangeMajor) {
      fail(Status::kUnsupported,
           "{}: speaks version {} of the metadata exchange, and this Towline version {}", what_, reply_.major,
           wire::kExchangeMajor);
    }
    const std::size_t most = reply_.status == 0 ? kMaxReplyBytes : wire::kMaxRefusalBytes;
    if (reply_.bytes > most) {
      fail(Status::kLimitExceeded, "{}: answers with {} bytes, and at most {} are taken", what_, reply_.bytes,
           most);
    }
  }

  Stream stream_;
  std::span<const uint8_t> own_;
  Limits limits_;
  const std::string& what_;
  std::array<uint8_t, wire::kExchangeHeaderBytes> request_ = {};
  std::size_t sent_ = 0;  // of request and own blob
  std::array<uint8_t, wire::kExchangeHeaderBytes> header_ = {};
  std::size_t header_bytes_ = 0;
  wire::ExchangeHeader reply_;
  std::vector<uint8_t> body_;
};

}  // namespace

std::vector<uint8_t> exchange(std::string_view address, std::span<const uint8_t> own, Deadline deadline,
                              const std::atomic<bool>* stop, const secure::MaybeKeys& keys) {
  if (own.size() > kMaxReplyBytes) {
    fail(Status::kLimitExceeded, "exchanging metadata with {}: {} bytes of our own, at most {} are taken",
         address, own.size(), kMaxReplyBytes);
  }
  const std::vector<SocketAddress> targets = resolve(parse_endpoint(address), deadline);
  for (std::size_t i = 0;; ++i) {
    const bool last = i + 1 == targets.size();
    const std::string number = targets[i].text();
    const std::string what = number == address
                                 ? fmt::format("exchanging metadata with {}", address)
                                 : fmt::format("exchanging metadata with {} ({})", address, number);
    const uint64_t now = monotonic_now_ns();
    const uint64_t share =
        deadline.is_never() ? kNoDeadline : deadline.remaining_ns(now) / (targets.size() - i);
    Stream stream;
    try {
      stream = connect_to(targets[i], {last ? deadline : Deadline::after(now, share), stop}, what);
    } catch (const Error&) {
      if (last) throw;
      continue;
    }
    shake_hands(keys, stream, {deadline, stop}, what);
    return Conversation(std::move(stream), own, {deadline, stop}, what).run();
  }
}

}  // namespace towline::metadata
