#include "metadata/listener/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <string>

#include "base/error.h"
#include "base/os/socket_address.h"
#include "metadata/listener/wire.h"

namespace towline::metadata {
namespace {

constexpr std::size_t kMaxReplyBytes = 64u << 20;
constexpr std::size_t kReplyReadBytes = 1u << 20;

// Waits until the socket is ready; throws Error(kTimedOut) at the deadline.
short wait_ready(int fd, short events, Deadline deadline, const std::string& what) {
  for (;;) {
    const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
    if (left == 0) fail(Status::kTimedOut, "{}: the deadline passed", what);
    const uint64_t most = std::min(left, 3600 * kSecondNs);
    const timespec timeout = {static_cast<time_t>(most / kSecondNs), static_cast<long>(most % kSecondNs)};
    pollfd watched = {fd, events, 0};
    const int ready = ppoll(&watched, 1, &timeout, nullptr);
    if (ready > 0) return watched.revents;
    if (ready < 0 && errno != EINTR) fail_errno(errno, "{}: poll", what);
  }
}

UniqueFd connect_to(const SocketAddress& address, Deadline deadline, const std::string& what) {
  UniqueFd fd = open_stream_socket(address.family());
  int error = start_connect(fd.get(), address);
  if (error == EINPROGRESS) {
    wait_ready(fd.get(), POLLOUT, deadline, what);
    error = finish_connect(fd.get());
  }
  // EAGAIN: a Unix socket whose queue is full, which only time cures.
  if (error == EAGAIN) fail(Status::kUnreachable, "{}: its queue of connections is full", what);
  if (error != 0) fail(Status::kUnreachable, "{}: {}", what, errno_text(error));
  return fd;
}

// The conversation on one connected socket: sends while it can, and receives all the while, since a refusal
// may come before everything is sent.
class Conversation {
 public:
  Conversation(UniqueFd fd, std::span<const uint8_t> own, Deadline deadline, const std::string& what)
      : fd_(std::move(fd)), own_(own), deadline_(deadline), what_(what) {
    wire::ExchangeHeader request;
    request.bytes = static_cast<uint32_t>(own.size());
    request_ = wire::pack(request);
  }

  std::vector<uint8_t> run() {
    while (!finished()) {
      const bool sending = sent_ < request_.size() + own_.size();
      const short ready = wait_ready(fd_.get(), sending ? POLLIN | POLLOUT : POLLIN, deadline_, what_);
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
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n > 0) sent_ += static_cast<std::size_t>(n);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      sent_ = request_.size() + own_.size();  // the answer may say why
  }

  void receive() {
    const bool in_header = header_bytes_ < header_.size();
    const std::size_t have = body_.size();
    if (!in_header) body_.resize(have + std::min<std::size_t>(reply_.bytes - have, kReplyReadBytes));
    uint8_t* const to = in_header ? header_.data() + header_bytes_ : body_.data() + have;
    const std::size_t want = in_header ? header_.size() - header_bytes_ : body_.size() - have;
    const ssize_t n = recv(fd_.get(), to, want, 0);
    const int error = errno;
    if (!in_header) body_.resize(have + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n == 0) fail(Status::kProtocol, "{}: closed without a whole answer; is it a Towline agent?", what_);
    if (n < 0 && (error == EAGAIN || error == EINTR)) return;
    if (n < 0) fail(Status::kUnreachable, "{}: receiving: {}", what_, errno_text(error));
    if (!in_header) return;
    header_bytes_ += static_cast<std::size_t>(n);
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

  UniqueFd fd_;
  std::span<const uint8_t> own_;
  Deadline deadline_;
  const std::string& what_;
  std::array<uint8_t, wire::kExchangeHeaderBytes> request_ = {};
  std::size_t sent_ = 0;  // of request and own blob
  std::array<uint8_t, wire::kExchangeHeaderBytes> header_ = {};
  std::size_t header_bytes_ = 0;
  wire::ExchangeHeader reply_;
  std::vector<uint8_t> body_;
};

}  // namespace

std::vector<uint8_t> exchange(std::string_view address, std::span<const uint8_t> own, Deadline deadline) {
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
    UniqueFd fd;
    try {
      fd = connect_to(targets[i], last ? deadline : Deadline::after(now, share), what);
    } catch (const Error&) {
      if (last) throw;
      continue;
    }
    return Conversation(std::move(fd), own, deadline, what).run();
  }
}

}  // namespace towline::metadata
