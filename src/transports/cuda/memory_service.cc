#include "transports/cuda/memory_service.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/os/packets.h"
#include "base/short_text.h"

namespace towline::cuda {

namespace {

constexpr size_t kMostVisitors = 64;
constexpr uint32_t kMostAcceptsAtOnce = 64;
constexpr uint64_t kOurName = 0x6d656d6f7279;  // "memory": the socket's name is another than the carrier's

// The name of an agent's socket follows from its identity, so it need not be sent.
packets::Address service_of(const plugin::Host& host, const uint64_t incarnation[2]) {
  const uint64_t name[2] = {incarnation[0] ^ kOurName, incarnation[1]};
  return packets::socket_name(name, host.config("shm.socket_dir", ""));
}

}  // namespace

MemoryService::MemoryService(const plugin::Host& host, Find find) : host_(host), find_(std::move(find)) {
  const packets::Address address = service_of(host_, host_.self().incarnation);
  spare_ = packets::open_spare();
  listener_ = packets::listen_on(address);
  if (!address.abstract) socket_file_ = address.name;
  if (host_.watch(0, listener_.get(), EPOLLIN, &plugin::ready<&MemoryService::accept_visitors>, this) !=
      TOWLINE_OK)
    fail(Status::kInternal, "cuda: the worker can't watch the socket that gives memory out");
}

MemoryService::~MemoryService() {
  while (!visitors_.empty()) dismiss(*visitors_.back());
  host_.unwatch(0, listener_.get());
  if (!socket_file_.empty()) unlink(socket_file_.c_str());
}

void MemoryService::broken(const char* why) noexcept {
  host_.log(1, ShortText("cuda: accepting a connection failed: {}", why));
}

void MemoryService::accept_visitors(uint32_t) {
  for (uint32_t i = 0; i < kMostAcceptsAtOnce; ++i) {
    int error = 0;
    UniqueFd socket = packets::accept_visitor(listener_.get(), spare_, error);
    if (error == EMFILE) {
      host_.log(1, "out of file descriptors, a process that asked for memory was turned away");
      continue;
    }
    if (!socket) return;
    if (visitors_.size() >= kMostVisitors) dismiss(*visitors_.front());
    auto visitor = std::make_unique<Visitor>(Visitor{this, std::move(socket)});
    const int fd = visitor->socket.get();
    if (host_.watch(0, fd, EPOLLIN | EPOLLRDHUP, &plugin::ready<&Visitor::socket_ready>, visitor.get()) ==
        TOWLINE_OK)
      visitors_.push_back(std::move(visitor));
  }
}

void MemoryService::dismiss(Visitor& visitor) noexcept {
  host_.unwatch(0, visitor.socket.get());
  std::erase_if(visitors_, [&](const auto& entry) { return entry.get() == &visitor; });
}

void MemoryService::hear(Visitor& visitor) {
  packets::Packet packet;
  const Status received = packets::receive_packet(visitor.socket.get(), packet);
  if (received == Status::kAgain) return;
  const std::optional<Ask> ask = received == Status::kOk ? decode_ask(packet.span()) : std::nullopt;
  if (!ask) return dismiss(visitor);
  Answer answer;
  try {
    const uid_t user = packets::peer_user(visitor.socket.get());
    const towline_identity& self = host_.self();
    if (user != geteuid())
      fail(Status::kPermissionDenied, "it is asked for by user {}, the owner runs as {}", user, geteuid());
    if (!std::equal(std::begin(ask->incarnation), std::end(ask->incarnation), self.incarnation))
      fail(Status::kPeerRestarted, "another agent listens there now");
    answer = find_(*ask);
  } catch (const core::Error& error) {
    answer = {};
    answer.status = error.code();
    answer.text = error.message();
  } catch (const std::exception& error) {
    answer = {};
    answer.status = Status::kInternal;
    answer.text = error.what();
  }
  const int fd = answer.part.fd.get();
  const std::vector<uint8_t> bytes = encode(answer);
  const auto fds = fd >= 0 ? std::span<const int>{&fd, 1} : std::span<const int>{};
  // One answer at a time is in flight, so a socket without room for it does not follow the protocol.
  if (packets::send_packet(visitor.socket.get(), bytes, fds) != Status::kOk) dismiss(visitor);
}

// ---- the asker's side

void MemoryRequest::stop() noexcept {
  if (!socket_) return;
  host_.unwatch(worker_, socket_.get());
  socket_.reset();
}

Status MemoryRequest::start(const uint64_t incarnation[2], uint64_t key, std::string& text) {
  const packets::Address address = service_of(host_, incarnation);
  socket_ = packets::make_socket();
  if (const int error = packets::connect_to(socket_.get(), address); error != 0) {
    socket_.reset();
    if (error == EAGAIN) return Status::kAgain;
    text = fmt::format("asking for the peer's memory at \"{}\": {}", address.name, errno_text(error));
    return Status::kUnreachable;
  }
  // A wake-up is enough: the core calls import again.
  if (host_.watch(
          worker_, socket_.get(), EPOLLIN | EPOLLRDHUP, [](void*, uint32_t) {}, nullptr) != TOWLINE_OK) {
    socket_.reset();
    text = "the worker can't watch the socket";
    return Status::kInternal;
  }
  ask_ = {{incarnation[0], incarnation[1]}, key, 0};
  return ask(text);
}

Status MemoryRequest::ask(std::string& text) {
  const Status sent = packets::send_packet(socket_.get(), encode(ask_), {});
  if (sent == Status::kOk) return sent;
  text = "the peer closed the socket it gives memory out on";
  return Status::kUnreachable;
}

Status MemoryRequest::step(const towline_region_ref& region, std::string& text) {
  for (;;) {
    packets::Packet packet;
    const Status received = packets::receive_packet(socket_.get(), packet);
    if (received == Status::kAgain) return received;
    if (received != Status::kOk) {
      text = "the peer closed the socket before it answered";
      return Status::kUnreachable;
    }
    std::optional<Answer> answer = decode_answer(packet.span());
    if (!answer) {
      text = "the peer's answer makes no sense";
      return Status::kProtocol;
    }
    if (answer->status != Status::kOk) {
      text = "the owner says: " + answer->text;
      return answer->status;
    }
    Shared& part = answer->part;
    part.fd = std::move(packet.fds[0]);
    const bool wants_fd = part.sharing != Sharing::kHandle;
    const bool adjoins = parts_.empty() ? part.address <= region.address
                                        : part.address == parts_.back().address + parts_.back().bytes &&
                                              part.sharing == parts_.back().sharing;
    if (answer->region_address != region.address || answer->region_bytes != region.bytes || !adjoins ||
        wants_fd != part.fd.valid()) {
      text = packet.fds_lost ? "this process is out of file descriptors"
                             : "the owner knows the region otherwise";
      return packet.fds_lost ? Status::kLimitExceeded : Status::kProtocol;
    }
    const uint64_t covered = part.address + part.bytes;
    parts_.push_back(std::move(part));
    if (parts_.size() == answer->parts) {
      stop();
      if (covered >= region.address + region.bytes) return Status::kOk;
      text = "the owner's parts do not cover the region";
      return Status::kProtocol;
    }
    ++ask_.index;
    if (const Status asked = ask(text); asked != Status::kOk) return asked;
  }
}

}  // namespace towline::cuda
