// Limit: bare TCP over loopback, one thread a side: sendmsg from the blocks and recvmsg into them, both sides
// knowing the list in advance and sending no headers. On one blocking socket, on four sockets under poll, or
// on one that both sides spin on. A WRITE ends with one byte back from the target, a READ begins with one
// byte to it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>

#include "../contender.h"
#include "../target.h"
#include "support/pause.h"

namespace bench {
namespace {

struct Style {
  std::size_t sockets;
  bool spin;  // instead of sleeping in the kernel
};

const std::map<std::string, Style> kStyles = {
    {"tcp", {1, false}}, {"tcp4", {4, false}}, {"tcp_spin", {1, true}}, {"tcp4_spin", {4, true}}};

constexpr std::size_t kBlocksPerCall = 1024;  // UIO_MAXIOV
constexpr std::size_t kPage = 4096;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// The share of a block list that goes over one socket, and how far it has got.
class Flow {
 public:
  explicit Flow(int socket) : socket_(socket) {}
  int socket() const { return socket_; }
  void clear() { blocks_.clear(); }
  void add(std::byte* at, std::size_t bytes) { blocks_.push_back({at, bytes}); }
  void rewind() {
    next_ = 0;
    skipped_ = 0;
  }
  bool finished() const { return next_ == blocks_.size(); }

  // One system call. Returns false when the socket is not ready.
  bool move(bool sending, int flags) {
    iovec& first = blocks_[next_];
    const iovec whole = first;
    first = {static_cast<std::byte*>(first.iov_base) + skipped_, first.iov_len - skipped_};
    msghdr message{};
    message.msg_iov = &first;
    message.msg_iovlen = std::min(kBlocksPerCall, blocks_.size() - next_);
    const ssize_t moved =
        sending ? sendmsg(socket_, &message, flags | MSG_NOSIGNAL) : recvmsg(socket_, &message, flags);
    first = whole;
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (moved <= 0) fail("bare TCP");
    advance(static_cast<std::size_t>(moved));
    return true;
  }

 private:
  void advance(std::size_t moved) {
    for (moved += skipped_; next_ < blocks_.size() && moved >= blocks_[next_].iov_len; ++next_)
      moved -= blocks_[next_].iov_len;
    skipped_ = moved;
  }

  int socket_;
  std::vector<iovec> blocks_;
  std::size_t next_ = 0;
  std::size_t skipped_ = 0;
};

// All sockets between the two processes, as one side sees them.
class Flows {
 public:
  Flows(const std::vector<int>& sockets, bool spin) : spin_(spin) {
    for (int socket : sockets) {
      const int on = 1;
      setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  // one that paces costs loopback a third
      flows_.emplace_back(socket);
    }
  }
  ~Flows() {
    for (const Flow& flow : flows_) close(flow.socket());
  }
  Flows(const Flows&) = delete;
  Flows& operator=(const Flows&) = delete;

  // Spreads the blocks in contiguous shares; a single large block is cut.
  void prepare(std::byte* base, const std::vector<std::uint64_t>& blocks, std::size_t block) {
    for (Flow& flow : flows_) flow.clear();
    const std::size_t pieces =
        blocks.size() < flows_.size() && block >= flows_.size() * kPage ? flows_.size() : 1;
    const std::size_t total = blocks.size() * pieces;
    for (std::size_t i = 0; i < total; ++i)
      flows_[i * flows_.size() / total].add(base + blocks[i / pieces] * block + i % pieces * (block / pieces),
                                            block / pieces);
  }

  void move_all(bool sending) {
    for (Flow& flow : flows_) flow.rewind();
    if (spin_ || flows_.size() > 1) {
      move_whichever_is_ready(sending);
    } else {
      while (!flows_[0].finished()) flows_[0].move(sending, 0);
    }
  }

  void signal() {
    const char byte = 1;
    if (send(flows_[0].socket(), &byte, 1, MSG_NOSIGNAL) != 1) fail("bare TCP signal");
  }

  void await_signal() {
    char byte;
    for (Spinner spin; recv(flows_[0].socket(), &byte, 1, spin_ ? MSG_DONTWAIT : 0) != 1; spin())
      if (errno != EAGAIN && errno != EINTR) fail("bare TCP signal");
  }

 private:
  void move_whichever_is_ready(bool sending) {
    std::size_t unfinished = 0;
    for (const Flow& flow : flows_) unfinished += !flow.finished();
    for (Spinner spin; unfinished > 0;) {
      bool moved = false;
      for (Flow& flow : flows_) {
        if (flow.finished() || !flow.move(sending, MSG_DONTWAIT)) continue;
        moved = true;
        unfinished -= flow.finished();
      }
      if (moved || unfinished == 0) continue;
      if (spin_) {
        spin();
      } else {
        sleep_until_ready(sending);
      }
    }
  }

  void sleep_until_ready(bool sending) {
    std::array<pollfd, 8> waits{};
    nfds_t n = 0;
    for (const Flow& flow : flows_)
      if (!flow.finished()) waits[n++] = {flow.socket(), static_cast<short>(sending ? POLLOUT : POLLIN), 0};
    poll(waits.data(), n, -1);
  }

  bool spin_;
  std::vector<Flow> flows_;
};

class TcpLimit final : public PairedContender {
 public:
  TcpLimit(const std::string& name, Session& session, Style style)
      : PairedContender(name, session), style_(style) {}

 private:
  void connect(const Json& target) override {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(target.at("port").get<std::uint16_t>());
    std::vector<int> sockets;
    for (std::size_t i = 0; i < style_.sockets; ++i) {
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (socket < 0 || ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        fail("connect");
      sockets.push_back(socket);
    }
    ask({{"do", "connect"}});
    flows_ = std::make_unique<Flows>(sockets, style_.spin);
  }
  void prepare_cell() override { flows_->prepare(local(), lists().local, cell().block); }
  bool target_serves() const override { return true; }

  void run_once() override {
    if (cell().op == Op::kWrite) {
      flows_->move_all(true);
      flows_->await_signal();
    } else {
      flows_->signal();
      flows_->move_all(false);
    }
  }

  Style style_;
  std::unique_ptr<Flows> flows_;
};

class TcpResponder final : public Responder {
 public:
  TcpResponder(TargetMemory& memory, Style style) : memory_(memory), style_(style) {}
  ~TcpResponder() override { close(listener_); }

  Json setup(const Json&) override {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 16) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      fail("listen");
    return {{"port", ntohs(address.sin_port)}};
  }
  Json connect(const Json&) override {
    std::vector<int> sockets;
    for (std::size_t i = 0; i < style_.sockets; ++i)
      sockets.push_back(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    flows_ = std::make_unique<Flows>(sockets, style_.spin);
    return {{"sockets", sockets.size()}};
  }
  void prepare(const Cell& cell, const BlockLists& lists) override {
    op_ = cell.op;
    flows_->prepare(memory(), lists.remote, cell.block);
  }
  void serve(std::uint64_t iterations) override {
    for (std::uint64_t i = 0; i < iterations; ++i) {
      if (op_ == Op::kWrite) {
        flows_->move_all(false);
        flows_->signal();
      } else {
        flows_->await_signal();
        flows_->move_all(true);
      }
    }
  }
  std::byte* memory() override { return memory_.anonymous(); }

 private:
  TargetMemory& memory_;
  Style style_;
  int listener_ = -1;
  Op op_ = Op::kWrite;
  std::unique_ptr<Flows> flows_;
};

}  // namespace

const Family kTcpFamily = {[](Session& session, Contenders& out) {
                             for (const auto& [name, style] : kStyles)
                               out.push_back(std::make_unique<TcpLimit>(name, session, style));
                           },
                           [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
                             const auto style = kStyles.find(name);
                             if (style == kStyles.end()) return nullptr;
                             return std::make_unique<TcpResponder>(memory, style->second);
                           }};

}  // namespace bench
