// No limit, but what explains the distance from one: the bare spinning TCP and ring programs, whose two sides
// know the list, with the least that an owner needs who does not. In front of each block goes a header of 64
// bytes and a segment of 24 with a checksum, which the owner copies out, checks, and takes the place from; a
// WRITE is answered by a header of 64 bytes, a READ's answer begins with one. For single blocks.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "../contender.h"
#include "../target.h"
#include "support/pause.h"

namespace bench {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 10;
constexpr std::size_t kReadAhead = std::size_t{16}
                                   << 10;  // blocks up to this size come in one read with their header

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Header {
  std::array<std::uint64_t, 7> fields;
  std::uint64_t checksum;
};
struct Request {
  Header header;
  std::uint64_t key;
  std::uint64_t offset;
  std::uint64_t bytes;
};
static_assert(sizeof(Header) == 64 && sizeof(Request) == 88);

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sum = ~0U;
  for (std::size_t i = 0; i < count; ++i) sum = __builtin_ia32_crc32di(sum, words[i]);
  return sum;
}
#else
std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sum = ~0U;
  for (std::size_t i = 0; i < count; ++i) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15U;
  return sum;
}
#endif

std::uint64_t checksum_of(const Request& request) {
  return sum_of(request.header.fields.data(), 7) ^ sum_of(&request.key, 3);
}

// One side of a connected byte stream without blocking: what move() makes of it is how much went.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual std::size_t put(iovec* pieces, std::size_t count) = 0;
  virtual std::size_t get(void* to, std::size_t bytes) = 0;

  void put_all(std::array<iovec, 2> pieces) {
    std::size_t at = 0;
    for (Spinner spin; at < pieces.size();) {
      std::size_t moved = put(&pieces[at], pieces.size() - at);
      if (moved == 0) spin();
      for (; at < pieces.size() && moved >= pieces[at].iov_len; ++at) moved -= pieces[at].iov_len;
      if (at < pieces.size()) {
        pieces[at].iov_base = static_cast<std::byte*>(pieces[at].iov_base) + moved;
        pieces[at].iov_len -= moved;
      }
    }
  }
  // At least `least` bytes, into a buffer of `most`.
  std::size_t get_some(std::byte* to, std::size_t least, std::size_t most) {
    std::size_t have = 0;
    for (Spinner spin; have < least;) {
      const std::size_t moved = get(to + have, most - have);
      if (moved == 0) spin();
      have += moved;
    }
    return have;
  }
};

// The messages that the two sides exchange over a stream.
class Talk {
 public:
  Talk(std::unique_ptr<Stream> stream, std::byte* memory, std::size_t span)
      : stream_(std::move(stream)), memory_(memory), span_(span) {}

  void ask(std::uint64_t offset, std::uint64_t bytes, std::byte* payload) {
    Request request{{{++sequence_, 1, bytes}, 0}, 7, offset, bytes};
    request.header.checksum = checksum_of(request);
    stream_->put_all({iovec{&request, sizeof request}, iovec{payload, payload == nullptr ? 0 : bytes}});
  }
  void answer(std::byte* payload, std::uint64_t bytes) {
    Header header{{++sequence_, 2, bytes}, 0};
    header.checksum = sum_of(header.fields.data(), 7);
    stream_->put_all({iovec{&header, sizeof header}, iovec{payload, payload == nullptr ? 0 : bytes}});
  }
  // The other side's header, and the payload behind it into place.
  void take_answer(std::byte* payload, std::uint64_t bytes) {
    const std::size_t have = fill(sizeof(Header), payload == nullptr ? 0 : bytes);
    Header header;
    std::memcpy(&header, staging_.data(), sizeof header);
    if (header.checksum != sum_of(header.fields.data(), 7)) throw std::runtime_error("header");
    if (payload != nullptr) place(payload, bytes, sizeof header, have);
  }
  // A request; a WRITE's payload is placed. Returns the place.
  std::byte* take_request(bool with_payload, std::uint64_t expected) {
    const std::size_t have = fill(sizeof(Request), with_payload ? expected : 0);
    Request request;
    std::memcpy(&request, staging_.data(), sizeof request);
    if (request.header.checksum != checksum_of(request) || request.key != 7 || request.bytes > span_ ||
        request.offset > span_ - request.bytes)
      throw std::runtime_error("request");
    if (with_payload) place(memory_ + request.offset, request.bytes, sizeof request, have);
    return memory_ + request.offset;
  }

 private:
  std::size_t fill(std::size_t header, std::size_t payload) {
    const bool ahead = payload <= kReadAhead;
    return stream_->get_some(staging_.data(), header, ahead ? staging_.size() : header);
  }
  void place(std::byte* to, std::size_t bytes, std::size_t header, std::size_t have) {
    const std::size_t here = std::min(have - header, bytes);
    std::memcpy(to, staging_.data() + header, here);
    if (here < bytes) stream_->get_some(to + here, bytes - here, bytes - here);
  }

  std::unique_ptr<Stream> stream_;
  std::byte* memory_;
  std::size_t span_;
  std::uint64_t sequence_ = 0;
  std::vector<std::byte> staging_ = std::vector<std::byte>(kReadAhead + 4096);
};

class SocketStream final : public Stream {
 public:
  explicit SocketStream(int socket) : socket_(socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
  ~SocketStream() override { close(socket_); }

  std::size_t put(iovec* pieces, std::size_t count) override {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count > 1 && pieces[1].iov_len == 0 ? 1 : count;
    return moved(sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  }
  std::size_t get(void* to, std::size_t bytes) override {
    return moved(recv(socket_, to, bytes, MSG_DONTWAIT));
  }

 private:
  static std::size_t moved(ssize_t bytes) {
    if (bytes > 0) return static_cast<std::size_t>(bytes);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    fail("TCP with headers");
  }
  int socket_;
};

constexpr std::size_t kRingBytes = std::size_t{256} << 10;

struct Ring {
  alignas(64) std::atomic<std::uint64_t> head;
  alignas(64) std::atomic<std::uint64_t> tail;
  alignas(64) std::byte bytes[kRingBytes];
};

class RingStream final : public Stream {
 public:
  RingStream(Memory memory, bool first) : memory_(std::move(memory)) {
    auto* rings = reinterpret_cast<Ring*>(memory_.data());
    out_ = rings + (first ? 0 : 1);
    in_ = rings + (first ? 1 : 0);
  }
  std::size_t put(iovec* pieces, std::size_t count) override {
    std::uint64_t head = out_->head.load(std::memory_order_relaxed);
    std::size_t free = kRingBytes;
    if (head + 2 * kMostBytes - tail_ > kRingBytes) tail_ = out_->tail.load(std::memory_order_acquire);
    free -= head - tail_;
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t here = std::min(pieces[i].iov_len, free - total);
      const std::size_t first = std::min(here, kRingBytes - (head + total) % kRingBytes);
      const auto* from = static_cast<std::byte*>(pieces[i].iov_base);
      if (here != 0) std::memcpy(out_->bytes + (head + total) % kRingBytes, from, first);
      if (first < here) std::memcpy(out_->bytes, from + first, here - first);
      total += here;
    }
    out_->head.store(head + total, std::memory_order_release);
    return total;
  }
  std::size_t get(void* to, std::size_t bytes) override {
    const std::uint64_t tail = in_->tail.load(std::memory_order_relaxed);
    const std::size_t here = std::min<std::size_t>(bytes, in_->head.load(std::memory_order_acquire) - tail);
    if (here == 0) return 0;
    const std::size_t first = std::min(here, kRingBytes - tail % kRingBytes);
    std::memcpy(to, in_->bytes + tail % kRingBytes, first);
    if (first < here) std::memcpy(static_cast<std::byte*>(to) + first, in_->bytes, here - first);
    in_->tail.store(tail + here, std::memory_order_release);
    return here;
  }

 private:
  Memory memory_;
  Ring* out_;
  Ring* in_;
  std::uint64_t tail_ = 0;
};

class HeadedContender final : public PairedContender {
 public:
  HeadedContender(const char* name, Session& session, bool tcp) : PairedContender(name, session), tcp_(tcp) {}
  bool supports(const Cell& cell) const override { return cell.count == 1 && cell.block <= kMostBytes; }

 private:
  void connect(const Json& target) override {
    std::unique_ptr<Stream> stream;
    if (tcp_) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(target.at("port").get<std::uint16_t>());
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (socket < 0 || ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        fail("connect");
      stream = std::make_unique<SocketStream>(socket);
    } else {
      stream = std::make_unique<RingStream>(
          Memory::shared_of(target.at("pid"), target.at("descriptor"), 2 * sizeof(Ring)), true);
    }
    ask({{"do", "connect"}});
    talk_.emplace(std::move(stream), local(), span());
  }
  bool target_serves() const override { return true; }
  void run_once() override {
    std::byte* const here = local() + lists().local[0] * cell().block;
    const std::uint64_t there = lists().remote[0] * cell().block;
    talk_->ask(there, cell().block, cell().op == Op::kWrite ? here : nullptr);
    talk_->take_answer(cell().op == Op::kWrite ? nullptr : here, cell().block);
  }

  const bool tcp_;
  std::optional<Talk> talk_;
};

class HeadedResponder final : public Responder {
 public:
  HeadedResponder(TargetMemory& memory, bool tcp) : memory_(memory), tcp_(tcp) {}
  ~HeadedResponder() override {
    if (listener_ >= 0) close(listener_);
  }

  Json setup(const Json&) override {
    if (!tcp_) {
      ring_ = Memory::shared("bench-ring-headed", 2 * sizeof(Ring));
      return {{"pid", getpid()}, {"descriptor", ring_.descriptor()}};
    }
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 4) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      fail("listen");
    return {{"port", ntohs(address.sin_port)}};
  }
  Json connect(const Json&) override {
    std::unique_ptr<Stream> stream;
    if (tcp_)
      stream = std::make_unique<SocketStream>(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    else
      stream = std::make_unique<RingStream>(std::move(ring_), false);
    talk_.emplace(std::move(stream), memory(), memory_.span);
    return {{"connected", true}};
  }
  void prepare(const Cell& cell, const BlockLists&) override { cell_ = cell; }
  void serve(std::uint64_t iterations) override {
    const bool write = cell_.op == Op::kWrite;
    for (std::uint64_t i = 0; i < iterations; ++i) {
      std::byte* const place = talk_->take_request(write, cell_.block);
      talk_->answer(write ? nullptr : place, cell_.block);
    }
  }
  std::byte* memory() override { return memory_.anonymous(); }

 private:
  TargetMemory& memory_;
  const bool tcp_;
  int listener_ = -1;
  Memory ring_;
  Cell cell_;
  std::optional<Talk> talk_;
};

}  // namespace

const Family kHeadedFamily = {
    [](Session& session, Contenders& out) {
      out.push_back(std::make_unique<HeadedContender>("ring_headed", session, false));
      out.push_back(std::make_unique<HeadedContender>("tcp_headed", session, true));
    },
    [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
      if (name != "ring_headed" && name != "tcp_headed") return nullptr;
      return std::make_unique<HeadedResponder>(memory, name == "tcp_headed");
    }};

}  // namespace bench
