#include "collectives/experts/handover.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/id.h"
#include "base/os/host_identity.h"
#include "base/os/packets.h"
#include "base/wire.h"
#include "collectives/experts/mix.h"
#include "gpu/piece_sockets.h"

namespace towline::collectives::experts {
namespace {

constexpr uint64_t kMagic = 0x746578706572'0004;
constexpr std::size_t kMostMetadata = 1 << 20;

// The pieces of this process.
struct Local {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<cuda::SharedPiece>> pieces;
};
Local& local() {
  static Local of_process;
  return of_process;
}

UniqueFd connect_to(const Description& from, Deadline deadline) {
  UniqueFd socket = packets::make_socket();
  const int error = cuda::connect_before(socket.get(), from.piece.socket, deadline);
  if (error == ETIMEDOUT) fail(Status::kTimedOut, "experts: timed out reaching rank {}", from.rank);
  if (error != 0)
    fail_errno(error, "experts: cannot reach rank {}: its process is gone, or in another network namespace",
               from.rank);
  if (const uid_t user = packets::peer_user(socket.get()); user != geteuid())
    fail(Status::kPermissionDenied, "experts: the process of rank {} belongs to user {}, this one to {}",
         from.rank, user, geteuid());
  return socket;
}

UniqueFd ask(const Description& from, Deadline deadline) {
  const UniqueFd socket = connect_to(from, deadline);
  packets::Packet packet;
  for (;;) {
    pollfd polled{socket.get(), POLLIN, 0};
    (void)::poll(&polled, 1, cuda::poll_ms(deadline));
    const Status status = packets::receive_packet(socket.get(), packet);
    if (status == Status::kOk) break;
    if (status != Status::kAgain)
      fail(Status::kPeerLost, "experts: rank {} went away before it handed over its memory: {}", from.rank,
           status_text(status));
    if (deadline.passed(monotonic_now_ns()))
      fail(Status::kTimedOut, "experts: timed out waiting for the memory of rank {}", from.rank);
  }
  const auto hello = cuda::decode_piece_hello(packet.span());
  if (!hello || packet.fd_count != 1 || hello->key != from.piece.key)
    fail(Status::kStale, "experts: the description of rank {} is of an earlier run", from.rank);
  return std::move(packet.fds[0]);
}

std::shared_ptr<cuda::SharedPiece> find_local(const Description& from) {
  Local& all = local();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pieces.find(from.piece.key);
  std::shared_ptr<cuda::SharedPiece> piece = found == all.pieces.end() ? nullptr : found->second.lock();
  if (piece == nullptr)
    fail(Status::kPeerLost, "experts: rank {} of this process has freed its memory already", from.rank);
  return piece;
}

}  // namespace

std::vector<uint8_t> encode(const Description& description) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u64(kMagic);
  out.u32(description.rank);
  out.u32(description.capacity);
  out.u32(description.local);
  out.string16(description.host);
  out.u32(description.opens ? 1 : 0);
  out.u64(description.side.slots);
  out.u32(description.side.kind);
  out.u64(description.side.device);
  out.bytes32(description.side.metadata);
  out.raw(cuda::encode(description.piece));
  return bytes;
}

std::optional<Description> decode_description(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u64() != kMagic) return std::nullopt;
  Description description;
  description.rank = in.u32();
  description.capacity = in.u32();
  description.local = in.u32();
  description.host = in.string16(kMostHost);
  const uint32_t opens = in.u32();
  description.opens = opens == 1;
  description.side.slots = in.u64();
  description.side.kind = in.u32();
  description.side.device = in.u64();
  const std::span<const uint8_t> metadata = in.bytes32(kMostMetadata);
  description.side.metadata.assign(metadata.begin(), metadata.end());
  if (!in.ok() || opens > 1) return std::nullopt;
  auto piece = cuda::decode_piece_notice(bytes.subspan(in.position()));
  if (!piece) return std::nullopt;
  description.piece = std::move(*piece);
  return description;
}

PieceServer::PieceServer(std::shared_ptr<cuda::SharedPiece> piece)
    : piece_(std::move(piece)),
      key_(random_u64()),
      name_("towline-experts-" + Id::random().to_hex()),
      listener_(packets::listen_on({true, name_})),
      descriptor_(piece_->descriptor()),
      spare_(packets::open_spare()) {
  {
    Local& all = local();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.pieces, [](const auto& entry) { return entry.second.expired(); });
    all.pieces[key_] = piece_;
  }
  thread_ = std::thread([this, hello = cuda::encode(cuda::PieceHello{key_, 0})] { serve(hello); });
}

PieceServer::~PieceServer() {
  stop_.signal();
  thread_.join();
  Local& all = local();
  const std::lock_guard lock(all.mutex);
  all.pieces.erase(key_);
}

// A visitor says nothing: its user is what counts.
void PieceServer::serve(std::span<const uint8_t> hello) noexcept {
  const int fds[] = {descriptor_.get()};
  for (;;) {
    pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    (void)::poll(polled, 2, -1);
    if (polled[0].revents != 0) return;
    if (polled[1].revents == 0) continue;
    int error = 0;
    const UniqueFd visitor = packets::accept_visitor(listener_.get(), spare_, error);
    // What can't be sent the visitor sees as the end of the connection.
    if (visitor && cuda::of_this_user(visitor.get())) (void)packets::send_packet(visitor.get(), hello, fds);
  }
}

bool within_reach(const Description& from, const cuda::Gpu& mine, const std::string& host) {
  if (from.host != host || !from.piece.host.same_host(read_host_identity())) return false;
  return mine.uuid == from.piece.gpu || (!mine.partitioned && !from.piece.partitioned);
}

uint64_t host_of(const Description& description) {
  const cuda::PieceNotice& piece = description.piece;
  Mix mix;
  for (const char letter : description.host) mix.add(static_cast<uint8_t>(letter));
  mix.add(piece.host.boot_id.hi);
  mix.add(piece.host.boot_id.lo);
  if (piece.host.boot_id.is_none()) mix.add(piece.key);
  if (piece.partitioned)
    for (const auto byte : piece.gpu) mix.add(static_cast<uint8_t>(byte));
  return mix.value;
}

std::shared_ptr<cuda::SharedPiece> take_piece(cuda::KernelDevice& device, uint32_t gpu,
                                              const Description& from, Deadline deadline) {
  const HostIdentity here = read_host_identity();
  const cuda::Gpu& mine = device.gpus()[gpu];
  const bool same_gpu = mine.uuid == from.piece.gpu;
  if (!from.piece.host.same_process(here)) return device.import(gpu, ask(from, deadline), from.piece.bytes);
  std::shared_ptr<cuda::SharedPiece> piece = find_local(from);
  if (!same_gpu) piece->let_reach(gpu);
  return piece;
}

}  // namespace towline::collectives::experts
