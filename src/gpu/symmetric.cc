#include "gpu/symmetric.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

#include "base/error.h"
#include "base/id.h"
#include "base/os/host_identity.h"
#include "base/os/socket_address.h"

namespace towline::cuda {

// A rank's message to the others, as bytes. All ranks are of one build: `magic` says so.
struct SymmetricMemory::Notice {
  uint64_t magic = 0;
  uint64_t key = 0;  // of the piece in its process
  uint64_t bytes = 0;
  uint64_t offset = 0;  // of the part that the others may use
  uint64_t length = 0;
  uint64_t lent = 0;  // only ranks of its process and GPU can use it
  HostIdentity host;
  Uuid gpu = {};
  char socket[48] = {};  // abstract
};

namespace {

constexpr uint64_t kMagic = 0x7473796d6d000002;

struct Hello {
  uint64_t magic = kMagic;
  uint64_t key = 0;  // of the sender's piece
  uint32_t rank = 0;
  uint32_t reserved = 0;
};

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

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) fail_errno(errno, "gpu: cannot make a Unix socket");
  return fd;
}

void check_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    fail_errno(errno, "gpu: credentials of a rank's socket");
  if (peer.uid != geteuid())
    fail(Status::kPermissionDenied, "gpu: a rank's process belongs to user {}, this one to {}", peer.uid,
         geteuid());
}

void await_input(int fd, Deadline deadline, const char* what) {
  for (;;) {
    const uint64_t now = monotonic_now_ns();
    if (deadline.passed(now)) fail(Status::kTimedOut, "gpu: timed out waiting for {}", what);
    const uint64_t left = std::min<uint64_t>((deadline.ns() - now) / kMillisecondNs + 1, 1000);
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(left)) > 0) return;
  }
}

void send_piece(int socket, const Hello& hello, int fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{const_cast<Hello*>(&hello), sizeof hello};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello))
    fail_errno(errno, "gpu: cannot send memory to another rank");
}

UniqueFd receive_piece(int socket, Hello& hello) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&hello, sizeof hello};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  UniqueFd fd;
  if (cmsghdr* const header = CMSG_FIRSTHDR(&message); got >= 0 && header != nullptr &&
                                                       header->cmsg_type == SCM_RIGHTS &&
                                                       header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int raw = -1;
    std::memcpy(&raw, CMSG_DATA(header), sizeof raw);
    fd.reset(raw);
  }
  if (got != static_cast<ssize_t>(sizeof hello) || hello.magic != kMagic || !fd)
    fail(Status::kProtocol, "gpu: a rank sent something else than its memory");
  return fd;
}

}  // namespace

SymmetricMemory::Notice SymmetricMemory::describe(uint32_t gpu) const {
  Notice mine;
  mine.magic = kMagic;
  mine.key = key_;
  mine.bytes = pieces_[rank_]->bytes();
  mine.offset = offsets_[rank_];
  mine.length = bytes_[rank_];
  mine.lent = pieces_[rank_]->lent() ? 1 : 0;
  mine.host = read_host_identity();
  mine.gpu = device_.gpus()[gpu].uuid;
  name_.copy(mine.socket, sizeof mine.socket - 1);
  return mine;
}

SymmetricMemory::SymmetricMemory(KernelDevice& device, uint32_t gpu, uint64_t bytes,
                                 std::shared_ptr<Words> words, uint32_t rank, uint32_t size,
                                 const Noticeboard& board, Deadline deadline)
    : SymmetricMemory(device, gpu, Part{device.allocate(gpu, bytes), 0, bytes}, std::move(words), rank, size,
                      board, deadline, "gpu/") {
  for (uint32_t other = 0; other < size_; ++other)
    if (bytes_[other] != bytes)
      fail(Status::kMismatch, "gpu: rank {} has other settings, or another build of Towline", other);
}

SymmetricMemory::SymmetricMemory(KernelDevice& device, uint32_t gpu, Part part, std::shared_ptr<Words> words,
                                 uint32_t rank, uint32_t size, const Noticeboard& board, Deadline deadline,
                                 const std::string& prefix)
    : device_(device), rank_(rank), size_(size), pieces_(size), offsets_(size), bytes_(size), words_(size) {
  static_assert(std::is_trivially_copyable_v<Notice>);
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
  std::vector<Notice> notices(size);
  notices[rank] = describe(gpu);
  const auto* const raw = reinterpret_cast<const uint8_t*>(&notices[rank]);
  board.set(fmt::format("{}{}", prefix, rank), {raw, sizeof(Notice)});
  for (uint32_t other = 0; other < size; ++other) {
    if (other == rank) continue;
    const std::vector<uint8_t> value = board.get(fmt::format("{}{}", prefix, other), deadline);
    if (value.size() != sizeof(Notice))
      fail(Status::kMismatch, "gpu: rank {} runs another build of Towline", other);
    std::memcpy(&notices[other], value.data(), sizeof(Notice));
    notices[other].socket[sizeof notices[other].socket - 1] = 0;
    if (notices[other].magic != kMagic)
      fail(Status::kMismatch, "gpu: rank {} has another build of Towline", other);
    if (!notices[other].host.same_host(notices[rank].host))
      fail(Status::kUnsupported, "gpu: rank {} is on another host: ranks on GPUs must share one", other);
    if (notices[other].offset > notices[other].bytes ||
        notices[other].length > notices[other].bytes - notices[other].offset)
      fail(Status::kProtocol, "gpu: rank {} tells of more memory than it has", other);
    offsets_[other] = notices[other].offset;
    bytes_[other] = notices[other].length;
  }
  // Every rank sees alike that one's memory can't be shared.
  for (uint32_t one = 0; one < size; ++one)
    for (uint32_t other = 0; other < size; ++other)
      if (notices[one].lent != 0 &&
          (!notices[other].host.same_process(notices[one].host) || notices[other].gpu != notices[one].gpu))
        fail(Status::kUnsupported,
             "gpu: the memory of rank {} can't be shared with rank {}: allocate it from Towline's pool "
             "(towline_gpu_malloc), or let the window allocate it",
             one, other);
  swap(gpu, notices, deadline);
}

void SymmetricMemory::listen() {
  name_ = "towline-gpu-" + Id::random().to_hex();
  listener_ = make_socket();
  const SocketAddress address = SocketAddress::unix_socket("@" + name_);
  if (::bind(listener_.get(), address.get(), address.size()) != 0 ||
      ::listen(listener_.get(), static_cast<int>(size_)) != 0)
    fail_errno(errno, "gpu: cannot listen for other ranks");
}

SymmetricMemory::~SymmetricMemory() {
  // A rank that says goodbye is not lost.
  for (const UniqueFd& visitor : visitors_) (void)::send(visitor.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  Local& all = local();
  const std::lock_guard lock(all.mutex);
  all.pieces.erase(key_);
}

void SymmetricMemory::swap(uint32_t gpu, std::span<const Notice> notices, Deadline deadline) {
  const Notice& mine = notices[rank_];
  uint32_t elsewhere = 0;
  for (uint32_t other = 0; other < size_; ++other) {
    const bool same_gpu = notices[other].gpu == mine.gpu;
    const bool same_process = notices[other].host.same_process(mine.host);
    if (same_gpu) ++ranks_on_gpu_;
    together_ = together_ && same_gpu && same_process;
    if (other == rank_) continue;
    if (!same_process) {
      ++elsewhere;
      send_to(other, notices[other], deadline);
      continue;
    }
    Local& all = local();
    const std::lock_guard lock(all.mutex);
    const auto found = all.pieces.find(notices[other].key);
    if (found != all.pieces.end()) {
      pieces_[other] = found->second.piece.lock();
      words_[other] = found->second.words.lock();
    }
    if (pieces_[other] == nullptr || words_[other] == nullptr)
      fail(Status::kPeerLost, "gpu: rank {} of this process has freed its memory already", other);
    if (!same_gpu) pieces_[other]->let_reach(gpu);
  }
  for (; elsewhere != 0; --elsewhere) {
    await_input(listener_.get(), deadline, "other ranks' memory");
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) fail_errno(errno, "gpu: cannot accept another rank");
    check_user(socket.get());
    await_input(socket.get(), deadline, "another rank's memory");
    Hello hello;
    const UniqueFd fd = receive_piece(socket.get(), hello);
    if (hello.rank >= size_ || pieces_[hello.rank] != nullptr || hello.key != notices[hello.rank].key)
      fail(Status::kProtocol, "gpu: memory came from a process that is no rank");
    pieces_[hello.rank] = device_.import(gpu, fd, notices[hello.rank].bytes);
    visitors_.push_back(std::move(socket));
  }
  listener_.reset();
}

// The other rank listens already, and accepts later.
void SymmetricMemory::send_to(uint32_t rank, const Notice& notice, Deadline deadline) {
  sockets_.resize(size_);
  UniqueFd socket = make_socket();
  const SocketAddress address = SocketAddress::unix_socket("@" + std::string(notice.socket));
  while (::connect(socket.get(), address.get(), address.size()) != 0) {
    if (errno != EAGAIN && errno != EINTR)
      fail_errno(errno, "gpu: cannot reach rank {}, which must be in the same network namespace", rank);
    if (deadline.passed(monotonic_now_ns())) fail(Status::kTimedOut, "gpu: timed out reaching rank {}", rank);
  }
  check_user(socket.get());
  const Hello hello{kMagic, key_, rank_, 0};
  const UniqueFd fd = pieces_[rank_]->descriptor();
  send_piece(socket.get(), hello, fd.get());
  sockets_[rank] = std::move(socket);
}

std::optional<uint32_t> SymmetricMemory::lost() noexcept {
  for (uint32_t rank = 0; rank < sockets_.size(); ++rank) {
    if (!sockets_[rank]) continue;
    pollfd entry{sockets_[rank].get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) continue;
    char goodbye = 0;
    const ssize_t got = ::recv(sockets_[rank].get(), &goodbye, 1, MSG_DONTWAIT);
    sockets_[rank].reset();
    if (got != 1) return rank;
  }
  return std::nullopt;
}

}  // namespace towline::cuda
