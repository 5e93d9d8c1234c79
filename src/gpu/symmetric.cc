#include "gpu/symmetric.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/id.h"
#include "base/os/host_identity.h"
#include "base/os/packets.h"
#include "gpu/piece_sockets.h"

namespace towline::cuda {

namespace {

constexpr uint8_t kGoodbye[] = {0};
constexpr std::size_t kMostStrangers = 16;     // sockets more than ranks
constexpr std::size_t kLongestFailure = 1024;  // bytes of a text on the board

// The pieces of this process that ranks of it may take.
struct Local {
  std::mutex mutex;
  struct Entry {
    std::weak_ptr<SharedPiece> piece;
    std::weak_ptr<Words> words;
  };
  std::map<uint64_t, Entry> pieces;
};
Local& local() {
  static Local of_process;
  return of_process;
}

constexpr const char* kThroughHost =
    "With a value of collectives.host for each rank data goes through processors' memory";

std::string name_of(const PieceNotice& notice) { return uuid_text(notice.gpu, notice.partitioned); }

// How this rank fared: an empty text is a success.
void tell(const Noticeboard& board, const std::string& prefix, uint32_t rank, std::string_view failure) {
  const std::string_view text = failure.substr(0, kLongestFailure);
  board.set(fmt::format("{}{}/in", prefix, rank),
            {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

bool is_gone(const UniqueFd& process) noexcept {
  pollfd entry{process.get(), POLLIN, 0};
  return process && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

PieceNotice SymmetricMemory::describe(uint32_t gpu) const {
  PieceNotice mine;
  mine.key = key_;
  mine.bytes = pieces_[rank_]->bytes();
  mine.offset = offsets_[rank_];
  mine.length = bytes_[rank_];
  mine.lent = pieces_[rank_]->lent();
  mine.host = read_host_identity();
  mine.gpu = device_.gpus()[gpu].uuid;
  mine.partitioned = device_.gpus()[gpu].partitioned;
  mine.socket = name_;
  return mine;
}

SymmetricMemory::SymmetricMemory(KernelDevice& device, uint32_t gpu, std::shared_ptr<SharedPiece> piece,
                                 uint64_t bytes, std::shared_ptr<Words> words, uint32_t rank, uint32_t size,
                                 const Noticeboard& board, Deadline deadline)
    : SymmetricMemory(device, gpu, Part{std::move(piece), 0, bytes}, std::move(words), rank, size, board,
                      deadline, kOwn) {
  for (uint32_t other = 0; other < size_; ++other)
    if (bytes_[other] != bytes)
      fail(Status::kMismatch, "gpu: rank {} has other settings, or another build of Towline", other);
}

SymmetricMemory::SymmetricMemory(KernelDevice& device, uint32_t gpu, Part part, std::shared_ptr<Words> words,
                                 uint32_t rank, uint32_t size, const Noticeboard& board, Deadline deadline,
                                 const std::string& prefix)
    : device_(device), rank_(rank), size_(size), pieces_(size), offsets_(size), bytes_(size), words_(size) {
  pieces_[rank_] = std::move(part.piece);
  offsets_[rank_] = part.offset;
  bytes_[rank_] = part.bytes;
  words_[rank_] = std::move(words);
  key_ = random_u64();
  {
    Local& all = local();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.pieces, [](const auto& entry) { return entry.second.piece.expired(); });
    all.pieces[key_] = {pieces_[rank_], words_[rank_]};
  }
  listen();
  try {
    exchange(gpu, board, deadline, prefix);
  } catch (const core::Error& error) {
    try {
      tell(board, prefix, rank, error.message());
    } catch (const core::Error&) {  // the others time out; this rank's own failure is what counts here
    }
    throw;
  }
  tell(board, prefix, rank, "");
  end_together(board, deadline, prefix);
}

void SymmetricMemory::refuse(const Noticeboard& board, const std::string& prefix, uint32_t rank,
                             const std::string& reason) noexcept {
  try {
    tell(board, prefix, rank, reason.empty() ? "no reason given" : reason);
    board.set(fmt::format("{}{}", prefix, rank), {});  // in place of its notice
  } catch (const std::exception&) {                    // the others time out
  }
}

// A rank that is through could otherwise leave at once, and take its memory along before another one has mapped it.
void SymmetricMemory::end_together(const Noticeboard& board, Deadline deadline, const std::string& prefix) {
  for (uint32_t other = 0; other < size_; ++other)
    if (other != rank_) check_joined(other, board, deadline, prefix);
}

void SymmetricMemory::check_joined(uint32_t other, const Noticeboard& board, Deadline deadline,
                                   const std::string& prefix) {
  const std::vector<uint8_t> failure = board.get(fmt::format("{}{}/in", prefix, other), deadline);
  if (!failure.empty())
    fail(Status::kPeerLost, "rank {} failed: {}", other, std::string(failure.begin(), failure.end()));
}

void SymmetricMemory::exchange(uint32_t gpu, const Noticeboard& board, Deadline deadline,
                               const std::string& prefix) {
  std::vector<PieceNotice> notices(size_);
  notices[rank_] = describe(gpu);
  board.set(fmt::format("{}{}", prefix, rank_), encode(notices[rank_]));
  for (uint32_t other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const std::vector<uint8_t> said = board.get(fmt::format("{}{}", prefix, other), deadline);
    if (said.empty()) check_joined(other, board, deadline, prefix);  // it refused
    auto notice = decode_piece_notice(said);
    if (!notice) fail(Status::kMismatch, "gpu: rank {} runs another build of Towline", other);
    if (!notice->host.same_host(notices[rank_].host))
      fail(Status::kUnsupported, "gpu: rank {} is on another host: ranks on GPUs must share one", other);
    notices[other] = std::move(*notice);
    offsets_[other] = notices[other].offset;
    bytes_[other] = notices[other].length;
  }
  // Every rank sees alike that one's memory can't be shared.
  for (uint32_t one = 0; one < size_; ++one)
    for (uint32_t other = 0; other < size_; ++other)
      if (notices[one].lent &&
          (!notices[other].host.same_process(notices[one].host) || notices[other].gpu != notices[one].gpu))
        fail(Status::kUnsupported,
             "gpu: the memory of rank {} can't be shared with rank {}: allocate it from Towline's pool "
             "(towline_gpu_malloc), or let the window allocate it",
             one, other);
  check_instances(notices);
  swap(gpu, notices, deadline);
}

// Every rank sees this alike, too.
void SymmetricMemory::check_instances(std::span<const PieceNotice> notices) {
  for (size_t one = 0; one < notices.size(); ++one)
    for (size_t other = one + 1; other < notices.size(); ++other)
      if (notices[one].gpu != notices[other].gpu && (notices[one].partitioned || notices[other].partitioned))
        fail(Status::kUnsupported,
             "gpu: rank {} is on {} and rank {} on {}: an instance of MIG reaches no other GPU's memory. {}",
             one, name_of(notices[one]), other, name_of(notices[other]), kThroughHost);
}

// step() makes the memory of that rank reachable. If the two have different GPUs, there may be no path between them.
template <class Step>
void SymmetricMemory::reach(uint32_t other, std::span<const PieceNotice> notices, Step&& step) {
  try {
    step();
  } catch (const core::Error& error) {
    if (notices[other].gpu == notices[rank_].gpu || error.code() == Status::kOutOfMemory) throw;
    fail(Status::kUnsupported, "gpu: rank {} on {} can't reach the memory of rank {} on {}: {}. {}", rank_,
         name_of(notices[rank_]), other, name_of(notices[other]), error.message(), kThroughHost);
  }
}

void SymmetricMemory::listen() {
  name_ = "towline-gpu-" + Id::random().to_hex();
  listener_ = packets::listen_on({true, name_});
}

SymmetricMemory::~SymmetricMemory() {
  // A rank that says goodbye is not lost.
  for (const UniqueFd& visitor : visitors_) (void)packets::send_packet(visitor.get(), kGoodbye, {});
  Local& all = local();
  const std::lock_guard lock(all.mutex);
  all.pieces.erase(key_);
}

void SymmetricMemory::swap(uint32_t gpu, std::span<const PieceNotice> notices, Deadline deadline) {
  const PieceNotice& mine = notices[rank_];
  const auto same_process = [&](uint32_t other) { return notices[other].host.same_process(mine.host); };
  // First of all: ranks that wait for this one's memory hear only then that it failed.
  uint32_t elsewhere = 0;
  for (uint32_t other = 0; other < size_; ++other) {
    if (same_process(other)) continue;
    ++elsewhere;
    send_to(other, notices[other], deadline);
  }
  for (uint32_t other = 0; other < size_; ++other) {
    const bool same_gpu = notices[other].gpu == mine.gpu;
    if (same_gpu) ++ranks_on_gpu_;
    together_ = together_ && same_gpu && same_process(other);
    if (other == rank_ || !same_process(other)) continue;
    Local& all = local();
    const std::lock_guard lock(all.mutex);
    const auto found = all.pieces.find(notices[other].key);
    if (found != all.pieces.end()) {
      pieces_[other] = found->second.piece.lock();
      words_[other] = found->second.words.lock();
    }
    if (pieces_[other] == nullptr || words_[other] == nullptr)
      fail(Status::kPeerLost, "gpu: rank {} of this process has freed its memory already", other);
    if (!same_gpu) reach(other, notices, [&] { pieces_[other]->let_reach(gpu); });
  }
  receive(gpu, notices, elsewhere, deadline);
  listener_.reset();
}

// Takes the memory of ranks of other processes. A stranger that finds the socket is turned away, and can't hold up the
// ranks: no rank is waited for alone.
void SymmetricMemory::receive(uint32_t gpu, std::span<const PieceNotice> notices, uint32_t missing,
                              Deadline deadline) {
  std::vector<UniqueFd> waiting;  // have not said hello, oldest first
  std::vector<pollfd> polled;
  UniqueFd spare = packets::open_spare();
  while (missing != 0) {
    if (deadline.passed(monotonic_now_ns())) {
      uint32_t rank = 0;
      while (pieces_[rank] != nullptr) ++rank;
      fail(Status::kTimedOut, "gpu: timed out waiting for the memory of rank {}", rank);
    }
    polled.assign(1, {listener_.get(), POLLIN, 0});
    for (const UniqueFd& visitor : waiting) polled.push_back({visitor.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), poll_ms(deadline)) <= 0) continue;
    for (std::size_t i = waiting.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0) continue;
      if (take_piece(gpu, notices, waiting[i])) --missing;
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[0].revents == 0) continue;
    int error = 0;
    UniqueFd visitor = packets::accept_visitor(listener_.get(), spare, error);
    if (!visitor) continue;
    if (waiting.size() >= size_ + kMostStrangers) waiting.erase(waiting.begin());
    if (of_this_user(visitor.get())) waiting.push_back(std::move(visitor));
  }
}

// False: it is no rank that is waited for.
bool SymmetricMemory::take_piece(uint32_t gpu, std::span<const PieceNotice> notices, UniqueFd& visitor) {
  packets::Packet packet;
  if (packets::receive_packet(visitor.get(), packet) != Status::kOk) return false;
  const auto hello = decode_piece_hello(packet.span());
  if (!hello || packet.fd_count != 1 || hello->rank >= size_ || pieces_[hello->rank] != nullptr ||
      hello->key != notices[hello->rank].key)
    return false;
  reach(hello->rank, notices,
        [&] { pieces_[hello->rank] = device_.import(gpu, packet.fds[0], notices[hello->rank].bytes); });
  visitors_.push_back(std::move(visitor));
  return true;
}

// The other rank listens already, and accepts later.
void SymmetricMemory::send_to(uint32_t rank, const PieceNotice& notice, Deadline deadline) {
  sockets_.resize(size_);
  processes_.resize(size_);
  UniqueFd socket = packets::make_socket();
  const int error = connect_before(socket.get(), notice.socket, deadline);
  if (error == ETIMEDOUT) fail(Status::kTimedOut, "gpu: timed out reaching rank {}", rank);
  if (error != 0)
    fail_errno(error, "gpu: cannot reach rank {}, which must be in the same network namespace", rank);
  if (const uid_t user = packets::peer_user(socket.get()); user != geteuid())
    fail(Status::kPermissionDenied, "gpu: the process of rank {} belongs to user {}, this one to {}", rank,
         user, geteuid());
  const std::vector<uint8_t> hello = encode(PieceHello{key_, rank_});
  const UniqueFd piece = pieces_[rank_]->descriptor();
  const int fds[] = {piece.get()};
  const Status sent = packets::send_packet(socket.get(), hello, fds);
  if (sent != Status::kOk) fail(sent, "gpu: cannot send memory to rank {}: {}", rank, status_text(sent));
  processes_[rank] = packets::peer_process(socket.get(), 0).pidfd;
  sockets_[rank] = std::move(socket);
}

void SymmetricMemory::stop_watching() noexcept {
  sockets_.clear();
  processes_.clear();
  visitors_.clear();
}

std::optional<uint32_t> SymmetricMemory::lost() noexcept {
  for (uint32_t rank = 0; rank < sockets_.size(); ++rank) {
    if (!sockets_[rank]) continue;
    packets::Packet packet;
    Status status = packets::receive_packet(sockets_[rank].get(), packet);
    if (status == Status::kAgain) {
      if (!is_gone(processes_[rank])) continue;
      status = packets::receive_packet(sockets_[rank].get(), packet);  // its goodbye, if it said one
    }
    sockets_[rank].reset();
    if (status != Status::kOk) return rank;
  }
  return std::nullopt;
}

}  // namespace towline::cuda
