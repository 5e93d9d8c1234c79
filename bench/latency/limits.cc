// The limits: a message and a sequence number in shared memory, spun on or slept on. A sleeper waits on a futex, or in
// epoll for a packet, which is what a worker that looks after sockets and timers as well has to do.
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "link.h"
#include "support/pause.h"

namespace bench {
namespace {

struct Mailbox {
  alignas(64) Message message;
  alignas(64) std::atomic<std::uint32_t> number;
};

struct Mailboxes {
  Mailbox to_target;
  Mailbox to_initiator;
};

enum class Wait { kSpin, kFutex, kPacket };

int must(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Packets from one process to the other: connected sockets, of which the receiving one is watched by epoll.
class Packets {
 public:
  Packets() : socket_(must(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket")) {}
  Packets(const Packets&) = delete;
  Packets& operator=(const Packets&) = delete;
  ~Packets() {
    for (const int descriptor : {socket_, peer_, epoll_})
      if (descriptor >= 0) close(descriptor);
  }

  void listen_as(pid_t pid) {
    sockaddr_un address = {};
    const socklen_t length = name(pid, address);
    must(bind(socket_, reinterpret_cast<sockaddr*>(&address), length), "bind");
    must(listen(socket_, 1), "listen");
  }
  void connect_to(pid_t pid) {
    sockaddr_un address = {};
    const socklen_t length = name(pid, address);
    must(::connect(socket_, reinterpret_cast<sockaddr*>(&address), length), "connect");
    peer_ = std::exchange(socket_, -1);
  }
  void accept_one() {
    peer_ = must(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK), "accept");
    epoll_ = must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    epoll_event event = {.events = EPOLLIN, .data = {}};
    must(epoll_ctl(epoll_, EPOLL_CTL_ADD, peer_, &event), "epoll_ctl");
  }

  void wake() { must(static_cast<int>(::send(peer_, "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL)), "send"); }
  void wait() {
    epoll_event event;
    while (epoll_wait(epoll_, &event, 1, -1) < 0) {
    }
  }
  // As a worker does: after the message, since looking for it needs no system call.
  void take() {
    char packet[8];
    [[maybe_unused]] const ssize_t got = recv(peer_, packet, sizeof packet, MSG_DONTWAIT);
  }

 private:
  static socklen_t name(pid_t pid, sockaddr_un& address) {
    const std::string text = fmt::format("towline-bench-latency-{}", pid);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());  // abstract
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }

  int socket_;
  int peer_ = -1;
  int epoll_ = -1;
};

class MailboxLink final : public Link {
 public:
  MailboxLink(bool initiator, Wait wait) : initiator_(initiator), wait_(wait) {
    if (wait == Wait::kPacket) packets_.emplace();
    if (initiator) return;
    memory_ = Memory::shared("bench-mailbox", sizeof(Mailboxes));
    if (packets_) packets_->listen_as(getpid());
  }
  Json describe() override { return {{"pid", getpid()}, {"descriptor", memory_.descriptor()}}; }
  void connect(const Json& other) override {
    if (initiator_) memory_ = Memory::shared_of(other.at("pid"), other.at("descriptor"), sizeof(Mailboxes));
    auto* both = reinterpret_cast<Mailboxes*>(memory_.data());
    out_ = initiator_ ? &both->to_target : &both->to_initiator;
    in_ = initiator_ ? &both->to_initiator : &both->to_target;
    if (packets_ && initiator_) packets_->connect_to(other.at("pid"));
    if (packets_ && !initiator_) packets_->accept_one();
  }

  void send(const Message& message) override {
    out_->message = message;
    out_->number.store(++sent_, std::memory_order_release);
    if (wait_ == Wait::kFutex) syscall(SYS_futex, &out_->number, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    if (wait_ == Wait::kPacket) packets_->wake();
  }

  Message receive() override {
    if (wait_ == Wait::kPacket) packets_->take();  // of the message before
    for (Spinner spin; in_->number.load(std::memory_order_acquire) == received_;) {
      if (wait_ == Wait::kFutex) {
        syscall(SYS_futex, &in_->number, FUTEX_WAIT, received_, nullptr, nullptr, 0);
      } else if (wait_ == Wait::kPacket) {
        packets_->wait();
      } else {
        spin();
      }
    }
    ++received_;
    return in_->message;
  }

 private:
  bool initiator_;
  Wait wait_;
  Memory memory_;
  std::optional<Packets> packets_;
  Mailbox* out_ = nullptr;
  Mailbox* in_ = nullptr;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
};

LinkKind mailbox(const char* name, Wait wait, const char* limit) {
  return {name, wait != Wait::kSpin, limit,
          [wait](bool initiator) { return std::make_unique<MailboxLink>(initiator, wait); }};
}

}  // namespace

const LinkKind kFlagLink = mailbox("flag", Wait::kSpin, "");
const LinkKind kFutexLink = mailbox("futex", Wait::kFutex, "");
const LinkKind kPacketLink = mailbox("packet in epoll", Wait::kPacket, "futex");

}  // namespace bench
