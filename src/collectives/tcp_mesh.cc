#include "collectives/tcp_mesh.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/os/congestion.h"
#include "base/os/descriptor_limit.h"
#include "collectives/interrupt.h"
#include "collectives/mesh_frames.h"
#include "collectives/pipe.h"

namespace towline::collectives {
namespace {

constexpr size_t kMostArriving = 1024;  // and a quarter of the process's descriptors
constexpr size_t kFewArriving = 16;
constexpr size_t kMostControlBytes = 65536;  // of incomplete frames
// How long a rank waits for the reason that rank 0 announces.
constexpr uint64_t kBreakNs = 500 * kMillisecondNs;
constexpr uint64_t kDialPauseNs = 100 * kMillisecondNs;

class StreamChannel final : public Channel {
 public:
  StreamChannel(Stream stream, int peer, Breaker& breaker)
      : stream_(std::move(stream)), peer_(peer), breaker_(breaker) {}
  size_t write(const void* data, size_t bytes) override { return moved(stream_.write(data, bytes)); }
  size_t read(void* data, size_t bytes) override { return bytes == 0 ? 0 : moved(stream_.read(data, bytes)); }
  bool can_write() override { return stream_.ready(POLLOUT); }
  bool can_read() override { return stream_.ready(POLLIN); }
  int fd() const override { return stream_.fd(); }

 private:
  size_t moved(const StreamResult& result) {
    if (result.over()) lost();
    return result.bytes;
  }
  void lost() {
    breaker_.raise(Status::kPeerLost,
                   fmt::format("rank {} closed its connection while messages were expected", peer_));
  }

  Stream stream_;
  const int peer_;
  Breaker& breaker_;
};

}  // namespace

TcpMesh::TcpMesh(int rank, int size, const std::string& listen, Breaker& breaker, uint64_t hello_ns,
                 secure::MaybeKeys keys)
    : rank_(rank),
      size_(size),
      breaker_(breaker),
      hello_ns_(hello_ns),
      keys_(std::move(keys)),
      most_arriving_(std::clamp(descriptor_limit() / 4, kFewArriving, kMostArriving)),
      socket_(parse_endpoint(listen, 0)),
      controls_(static_cast<size_t>(size)),
      pipes_(static_cast<size_t>(size)),
      message_streams_(static_cast<size_t>(size)),
      has_messages_(static_cast<size_t>(size)),
      verdict_(size) {}

TcpMesh::~TcpMesh() = default;

std::vector<std::string> TcpMesh::endpoints(const std::string& store_host) const {
  std::vector<std::string> result;
  const auto add = [&](const std::string& text) {
    if (std::ranges::find(result, text) == result.end()) result.push_back(text);
  };
  const std::vector<SocketAddress> reachable = socket_.reachable();
  for (const SocketAddress& address : reachable)
    if (address.endpoint().host == store_host) add(address.text());
  for (const SocketAddress& address : reachable) add(address.text());
  if (result.size() > 16) result.resize(16);
  return result;
}

std::string TcpMesh::describe(int peer) const {
  const auto i = static_cast<size_t>(peer);
  return i < infos_.size() ? name_of(peer, infos_[i]) : fmt::format("rank {}", peer);
}

// ---- Connecting

void TcpMesh::tune(Stream& stream, int peer) const noexcept {
  const HostIdentity& mine = infos_[static_cast<size_t>(rank_)].host;
  const bool here = mine.same_host(infos_[static_cast<size_t>(peer)].host);
  if (const auto name = congestion_for(congestion_, here); !name.empty()) stream.set_congestion(name);
}

// An address has half of a hello's time, and all are tried again for as long: a network that has just come up still answers
// that there is no route. A rank that is connected and does not shake hands is there, and held up: it is waited for.
Stream TcpMesh::dial_peer(int peer, Kind kind, Deadline deadline) {
  const std::vector<uint8_t> hello =
      encode(MeshHello{static_cast<uint8_t>(kind), static_cast<uint32_t>(rank_), secret_});
  const uint64_t dial_ns = hello_ns_ / 2;
  const uint64_t begin = monotonic_now_ns();
  for (uint64_t now = begin;; now = monotonic_now_ns()) {
    std::string problems;
    bool held_up = false;
    for (const std::string& text : infos_[static_cast<size_t>(peer)].endpoints) {
      try {
        const Deadline soon = Deadline::at(std::min(deadline.ns(), Deadline::after(now, dial_ns).ns()));
        Stream stream = Stream::dial(parse_endpoint(text), soon, Stream::Patience::kNone);
        tune(stream, peer);
        secure::secure(keys_, stream, secure::Side::kCaller);
        const Status shaken = stream.shake_hands(soon);
        held_up = held_up || shaken == Status::kTimedOut;
        if (is_error(shaken))
          fail(shaken, "{}: {}", text,
               shaken == Status::kPermissionDenied ? stream.why() : "it does not shake hands");
        if (!is_error(stream.write_all(hello, soon))) return stream;
      } catch (const Error& error) {
        problems += (problems.empty() ? "" : "; ") + error.message();
      }
      now = monotonic_now_ns();
    }
    const uint64_t left = deadline.remaining_ns(now);
    const bool given_up = breaker_.broken() || Interrupt::asked();
    if ((now - begin >= dial_ns && !held_up) || left == 0 || given_up)
      fail(Status::kUnreachable, "cannot connect to {}: {}", describe(peer),
           problems.empty() ? "it gives no address" : problems);
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kDialPauseNs, left)));
  }
}

void TcpMesh::join(const std::vector<rendezvous::RankInfo>& infos, const Id& secret, Deadline deadline) {
  infos_ = infos;
  {
    const std::lock_guard lock(mutex_);
    secret_ = secret;
  }
  if (rank_ == 0) return;
  Stream stream = dial_peer(0, Kind::kControl, deadline);
  const std::lock_guard lock(mutex_);
  controls_[0].stream = std::move(stream);
}

bool TcpMesh::complete() {
  const std::lock_guard lock(mutex_);
  return rank_ != 0 || std::all_of(controls_.begin() + 1, controls_.end(),
                                   [](const Control& control) { return control.stream.valid(); });
}

Stream* TcpMesh::pipe_to(int peer, const Header& header, Deadline deadline, Status& status) {
  const auto i = static_cast<size_t>(peer);
  std::unique_lock lock(mutex_);
  if (pipes_[i].valid()) return &pipes_[i];
  if (rank_ > peer) {
    lock.unlock();
    try {
      Stream stream = dial_peer(peer, Kind::kPipe, deadline);
      lock.lock();
      pipes_[i] = std::move(stream);
      return &pipes_[i];
    } catch (const Error& error) {
      status = Interrupt::asked() ? interrupted(header) : breaker_.raise(Status::kPeerLost, error.message());
      return nullptr;
    }
  }
  while (!pipes_[i].valid()) {
    if (breaker_.broken()) {
      status = breaker_.status();
      return nullptr;
    }
    if (is_late(deadline, monotonic_now_ns())) {
      lock.unlock();
      status = fail_late(header, peer);
      return nullptr;
    }
    if (Interrupt::asked()) {
      lock.unlock();
      status = interrupted(header);
      return nullptr;
    }
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  return &pipes_[i];
}

std::unique_ptr<Channel> TcpMesh::message_channel(int peer) {
  const auto i = static_cast<size_t>(peer);
  if (rank_ > peer) {
    try {
      Stream stream = dial_peer(peer, Kind::kMessages, Deadline::after(monotonic_now_ns(), 30 * kSecondNs));
      return std::make_unique<StreamChannel>(std::move(stream), peer, breaker_);
    } catch (const Error& error) {
      breaker_.raise(Status::kPeerLost, error.message());
      return nullptr;
    }
  }
  const std::lock_guard lock(mutex_);
  if (!message_streams_[i].valid()) return nullptr;
  return std::make_unique<StreamChannel>(std::move(message_streams_[i]), peer, breaker_);
}

// ---- The watcher

void TcpMesh::poll_fds(std::vector<pollfd>& polled) {
  polled.push_back({socket_.fd(), POLLIN, 0});
  for (const Arriving& arriving : arriving_) {
    const int events = arriving.stream.unsent() ? POLLIN | POLLOUT : POLLIN;
    if (arriving.bytes.size() < kMeshHelloBytes)
      polled.push_back({arriving.stream.fd(), static_cast<short>(events), 0});
  }
  const std::lock_guard lock(mutex_);
  for (const Control& control : controls_)
    if (control.stream.valid()) polled.push_back({control.stream.fd(), POLLIN, 0});
}

void TcpMesh::serve() {
  take_arrivals(monotonic_now_ns());
  for (int peer = 0; peer < size_; ++peer) {
    Control& control = controls_[static_cast<size_t>(peer)];
    {
      const std::lock_guard lock(mutex_);
      if (!control.stream.valid()) continue;
    }
    if (read_control(peer, control)) continue;
    const bool left = control.left;
    {
      const std::lock_guard lock(mutex_);
      control.stream.close();
    }
    if (left || breaker_.broken()) continue;
    Breakage lost{Status::kPeerLost,
                  fmt::format("{} ended without closing the communicator", describe(peer))};
    if (rank_ == 0)
      take_reason(peer, std::move(lost));
    else
      breaker_.record(std::move(lost));
  }
  settle_claims();
}

void TcpMesh::take_arrivals(uint64_t now_ns) {
  int error = 0;
  while (UniqueFd socket = socket_.accept(nullptr, &error)) {
    Arriving arrived{Stream::accepted(std::move(socket)), {}, now_ns + hello_ns_};
    arrived.stream.tune({});
    try {
      secure::secure(keys_, arrived.stream, secure::Side::kCalled);
      if (greet(arrived)) continue;  // its hello may be there already
      make_room();
      arriving_.push_back(std::move(arrived));
    } catch (const std::exception&) {  // it is closed
    }
  }
  for (auto arriving = arriving_.begin(); arriving != arriving_.end();) {
    const bool late = arriving->bytes.size() < kMeshHelloBytes && arriving->due_ns <= now_ns;
    bool finished = true;
    try {
      finished = greet(*arriving);
    } catch (const std::exception&) {  // it is closed
    }
    arriving = finished || late ? arriving_.erase(arriving) : std::next(arriving);
  }
}

// Ranks identify themselves at once, and soon after that the secret is known: the oldest connection, of those without a
// hello if there are any, is not a rank.
void TcpMesh::make_room() noexcept {
  if (arriving_.size() < most_arriving_) return;
  const auto silent =
      std::ranges::find_if(arriving_, [](const Arriving& one) { return one.bytes.size() < kMeshHelloBytes; });
  arriving_.erase(silent != arriving_.end() ? silent : arriving_.begin());
}

// True when it is finished: accepted or dropped.
bool TcpMesh::greet(Arriving& arriving) {
  if (arriving.bytes.size() < kMeshHelloBytes) {
    uint8_t buffer[kMeshHelloBytes];
    const StreamResult got = arriving.stream.read(buffer, kMeshHelloBytes - arriving.bytes.size());
    if (got.refused())
      TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "rank {} refused a connection: {}", rank_,
                        arriving.stream.failure(got));
    if (!got.moved()) return got.over();
    arriving.bytes.insert(arriving.bytes.end(), buffer, buffer + got.bytes);
    if (arriving.bytes.size() < kMeshHelloBytes) return false;
  }
  const auto hello = decode_hello(arriving.bytes);
  if (!hello) return true;
  const std::lock_guard lock(mutex_);
  if (secret_.is_none()) return false;  // not known yet
  if (hello->secret == secret_) take_in(std::move(arriving.stream), hello->kind, hello->rank);
  return true;
}

// Each connection is made once, by the rank that dials. Replacing it would close a descriptor that a thread
// is using. mutex_ is held.
bool TcpMesh::take_in(Stream stream, uint8_t kind, uint32_t peer) {
  if (peer >= static_cast<uint32_t>(size_) || static_cast<int>(peer) <= rank_) return false;
  tune(stream, static_cast<int>(peer));
  if (kind == static_cast<uint8_t>(Kind::kControl) && rank_ == 0) {
    if (controls_[peer].has_come) return false;
    controls_[peer].has_come = true;
    controls_[peer].stream = std::move(stream);
  } else if (kind == static_cast<uint8_t>(Kind::kPipe)) {
    if (pipes_[peer].valid()) return false;
    pipes_[peer] = std::move(stream);
  } else if (kind == static_cast<uint8_t>(Kind::kMessages)) {
    if (has_messages_[peer]) return false;
    has_messages_[peer] = true;
    message_streams_[peer] = std::move(stream);
  } else {
    return false;
  }
  changed_.notify_all();
  return true;
}

// False when the connection has ended.
bool TcpMesh::read_control(int peer, Control& control) {
  for (;;) {
    uint8_t buffer[4096];
    const StreamResult got = control.stream.read(buffer, sizeof buffer);
    if (!got.moved()) return got.blocked();
    control.bytes.insert(control.bytes.end(), buffer, buffer + got.bytes);
    size_t taken = 0;
    while (const auto frame = decode_control(std::span(control.bytes).subspan(taken), taken)) {
      if (frame->type == kMeshLeave) control.left = true;
      if (frame->type == kMeshHurry && peer == 0) breaker_.hurry();
      if (frame->type != kMeshBreak || !is_error(frame->reason.status)) continue;
      if (rank_ == 0) {
        take_reason(peer, frame->reason);
      } else if (peer == 0) {
        {
          const std::lock_guard lock(mutex_);
          verdict_.settle(frame->reason);
        }
        changed_.notify_all();
        breaker_.record(settled(frame->reason));
      }
    }
    control.bytes.erase(control.bytes.begin(), control.bytes.begin() + static_cast<ptrdiff_t>(taken));
    if (control.bytes.size() > kMostControlBytes) return false;
  }
}

void TcpMesh::tell(int peer, uint8_t type, const Breakage& reason) noexcept try {
  const std::vector<uint8_t> frame = encode_control(type, reason);
  Stream& stream = controls_[static_cast<size_t>(peer)].stream;
  if (stream.valid())
    (void)stream.write_all(frame, Deadline::after(monotonic_now_ns(), 200 * kMillisecondNs));
} catch (const std::exception& error) {  // the rank notices that this one has gone
  TOWLINE_LOG(kError, "telling rank {} why the communicator ends: {}", peer, error.what());
}

// Rank 0, with the lock. The same reason applies to all ranks.
void TcpMesh::announce() {
  if (!verdict_.settled() || std::exchange(announced_, true)) return;
  for (int peer = 1; peer < size_; ++peer) tell(peer, kMeshBreak, verdict_.reason());
  changed_.notify_all();
}

// Rank 0, with a rank's reason.
void TcpMesh::take_reason(int rank, Breakage reason) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_.take(rank, std::move(reason), monotonic_now_ns())) {
      breaker_.hurry();
      for (int peer = 1; peer < size_; ++peer) tell(peer, kMeshHurry, {});
    }
    announce();
  }
  settle_claims();
}

// Rank 0, on the watcher.
void TcpMesh::settle_claims() {
  if (rank_ != 0) return;
  Breakage agreed;
  {
    const std::lock_guard lock(mutex_);
    verdict_.look(monotonic_now_ns());
    announce();
    if (!verdict_.settled()) return;
    agreed = verdict_.reason();
  }
  breaker_.record(std::move(agreed));
}

Breakage TcpMesh::agree(Breakage reason) {
  const auto until = [](uint64_t ns) {
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  };
  const bool claims = !reason.awaited.empty();
  std::unique_lock lock(mutex_);
  if (verdict_.settled()) return verdict_.reason();
  if (rank_ == 0) {
    if (verdict_.take(0, std::move(reason), monotonic_now_ns()))
      for (int peer = 1; peer < size_; ++peer) tell(peer, kMeshHurry, {});
    while (verdict_.waits()) {  // the watcher takes in the others' claims
      const uint64_t now = monotonic_now_ns();
      if (now < verdict_.due_ns()) changed_.wait_until(lock, until(verdict_.due_ns() - now));
      verdict_.look(monotonic_now_ns());
    }
    announce();
    return verdict_.reason();
  }
  tell(0, kMeshBreak, reason);
  changed_.wait_until(lock, until(claims ? Verdict::kAnswerNs : kBreakNs),
                      [&] { return verdict_.settled(); });
  if (verdict_.settled()) return verdict_.reason();
  if (claims) reason.awaited = {0};  // it stands still itself
  return settled(std::move(reason));
}

void TcpMesh::leave() noexcept {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < size_; ++peer) tell(peer, kMeshLeave, {});
}

bool TcpMesh::verdict_waits() {
  if (rank_ == 0) return breaker_.broken();
  for (int turn = 0; turn < 100; ++turn) {
    {
      const std::lock_guard lock(mutex_);
      const Stream& stream = controls_[0].stream;
      if (!stream.valid() || !stream.ready(POLLIN)) break;
    }
    if (breaker_.broken()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the watcher is about to read it
  }
  return breaker_.broken();
}

// ---- Operations

Status TcpMesh::exchange(const Header& header, int to, std::span<const uint8_t> out, int from,
                         std::span<uint8_t> in, Deadline deadline) {
  Message messages[2];
  size_t count = 0;
  if (to >= 0) messages[count++] = {to, true, out, {}};
  if (from >= 0) messages[count++] = {from, false, {}, in};
  return exchange_all(header, {messages, count}, deadline);
}

TcpMesh::Moving TcpMesh::moving_of(Stream* pipe, const Header& header, const Message& message) noexcept {
  return {message.peer,
          pipe,
          PipeSend(message.sends ? pipe : nullptr, header, message.out),
          PipeReceive(message.sends ? nullptr : pipe, message.in),
          message.in.size(),
          message.sends};
}

Status TcpMesh::exchange_all(const Header& header, std::span<const Message> messages, Deadline deadline,
                             const Next& next) {
  moving_.clear();
  for (const Message& message : messages) {
    Status status = Status::kOk;
    Stream* const pipe = pipe_to(message.peer, header, deadline, status);
    if (is_error(status)) return status;
    moving_.push_back(moving_of(pipe, header, message));
  }
  uint64_t idle_since_ns = 0;
  for (;;) {
    bool moved = false;
    bool may_write = false;
    const Moving* waiting = nullptr;  // waits for the first receive, else for a send
    for (size_t place = 0; place < moving_.size(); ++place) {
      Moving& moving = moving_[place];
      if (moving.done()) continue;
      if (const Status status = step(header, moving, moved); is_error(status)) return status;
      if (moving.done() && next) {
        Message message = messages[place];
        if (next(place, message)) moving = moving_of(moving.stream, header, message);
      }
      if (moving.done()) continue;
      may_write = may_write || (moving.writable && !moving.sending.done());
      if (waiting == nullptr || (waiting->receiving.done() && !moving.receiving.done())) waiting = &moving;
    }
    if (waiting == nullptr) return Status::kOk;
    if (moved) {
      idle_since_ns = 0;
      continue;
    }
    if (breaker_.broken()) return breaker_.status();
    const uint64_t now = monotonic_now_ns();
    if (is_late(deadline, now)) return fail_late(header, waiting->peer);
    if (Interrupt::asked()) return interrupted(header);
    if (idle_since_ns == 0) idle_since_ns = now;
    if (may_write || now - idle_since_ns < spin_ns_) continue;
    polled_.clear();
    for (const Moving& moving : moving_)
      if (!moving.done())
        polled_.push_back(
            {moving.stream->fd(), static_cast<short>(moving.sending.done() ? POLLIN : POLLOUT), 0});
    ::poll(polled_.data(), polled_.size(), poll_timeout_ms(deadline, 50));
    for (Moving& moving : moving_) moving.writable = true;
  }
}

Status TcpMesh::fail_late(const Header& header, int peer) {
  return breaker_.raise({Status::kTimedOut,
                         fmt::format("rank {} timed out in {}", rank_, collectives::describe(header)),
                         {peer}});
}

Status TcpMesh::interrupted(const Header& header) {
  return breaker_.raise(Status::kCancelled,
                        fmt::format("rank {} was interrupted in {}", rank_, collectives::describe(header)));
}

// Moves as many bytes as possible now. A full socket is tried again when the kernel says that a good part of
// it is free: filling every gap at once would send many small segments.
Status TcpMesh::step(const Header& header, Moving& moving, bool& moved) {
  const PipeStep sent = moving.writable ? moving.sending.step() : PipeStep::kBlocked;
  const PipeStep received = moving.receiving.step();
  if (sent == PipeStep::kBlocked && !moving.sending.done()) {
    moving.writable = moving.stream->ready(POLLOUT);
  }
  if (sent == PipeStep::kLost || received == PipeStep::kLost) {
    return breaker_.raise(Status::kPeerLost,
                          fmt::format("{} closed its connection during {}", describe(moving.peer),
                                      collectives::describe(header)));
  }
  moved = moved || sent == PipeStep::kMoved || received == PipeStep::kMoved;
  if (moving.compared || !moving.receiving.headed()) return Status::kOk;
  moving.compared = true;
  return compare(header, moving.peer, moving.receiving.prefix(), moving.expected);
}

Status TcpMesh::compare(const Header& header, int from, const PipePrefix& theirs, uint64_t expected) {
  if (!(theirs.header == header)) {
    const bool lower = rank_ < from;
    return breaker_.raise(Status::kMismatch,
                          describe_mismatch(lower ? rank_ : from, lower ? header : theirs.header,
                                            lower ? from : rank_, lower ? theirs.header : header));
  }
  if (theirs.bytes != expected) {
    return breaker_.raise(
        Status::kMismatch,
        fmt::format("ranks disagree in {}: rank {} sends {} bytes to rank {}, which expects {}",
                    collectives::describe(header), from, theirs.bytes, rank_, expected));
  }
  return Status::kOk;
}

}  // namespace towline::collectives
