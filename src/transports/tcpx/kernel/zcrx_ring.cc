#include "transports/tcpx/kernel/zcrx_ring.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/os/memfd.h"
#include "base/os/unique_fd.h"
#include "transports/tcpx/kernel/refill_ring.h"
#include "transports/tcpx/kernel/zcrx_abi.h"

#ifdef TOWLINE_HAVE_LIBURING
#include <liburing.h>
#endif

namespace towline::tcpx {

std::optional<uint64_t> place_in_area(const ZcrxCompletion& completion, uint64_t area_bytes) noexcept {
  if (completion.result <= 0 || completion.offset >> zcrx::kAreaShift != 0) return std::nullopt;
  const auto bytes = static_cast<uint64_t>(completion.result);
  if (bytes > area_bytes || completion.offset > area_bytes - bytes) return std::nullopt;
  return completion.offset;
}

#ifdef TOWLINE_HAVE_LIBURING
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr unsigned kRequests = 256;
constexpr unsigned kCompletions = 4096;
constexpr uint64_t kPoke = UINT64_MAX;
constexpr uint64_t kIgnored = UINT64_MAX - 1;

struct Ring {
  io_uring ring = {};
  bool open = false;
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open) io_uring_queue_exit(&ring);
  }
};

uint64_t number_of(const void* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

class KernelZcrxRing final : public ZcrxRing {
 public:
  KernelZcrxRing(std::span<uint8_t> area, const ZcrxQueue& queue);

  void receive(int socket, uint32_t user) noexcept override;
  void cancel(uint32_t user) noexcept override;
  int wait(bool for_completions) noexcept override;
  bool next(ZcrxCompletion& out) noexcept override;
  bool refill(uint64_t offset, uint32_t bytes) noexcept override { return refills_->push(offset, bytes); }
  void flush(bool full) noexcept override;
  void poke() noexcept override {
    const uint64_t one = 1;
    (void)!::write(poke_.get(), &one, sizeof one);
  }

 private:
  void register_queue(std::span<uint8_t> area, const ZcrxQueue& queue);
  io_uring_sqe* entry() noexcept;
  void watch_poke() noexcept;
  void take_poke() noexcept {
    uint64_t count = 0;
    (void)!::read(poke_.get(), &count, sizeof count);
  }

  const bool has_nic_;
  Mapping region_;
  UniqueFd poke_;
  std::optional<RefillRing> refills_;
  uint32_t id_ = 0;
  Ring ring_;  // closed first: the kernel writes to the region
};

KernelZcrxRing::KernelZcrxRing(std::span<uint8_t> area, const ZcrxQueue& queue)
    : has_nic_(queue.interface != 0), poke_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!poke_.valid()) fail_errno(errno, "making an eventfd");
  io_uring_params params = {};
  params.flags = IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CQSIZE;
  params.cq_entries = kCompletions;
  const int result = io_uring_queue_init_params(kRequests, &ring_.ring, &params);
  if (result < 0) fail_errno(-result, "opening an io_uring for zero-copy receive (needs Linux 6.15)");
  ring_.open = true;
  register_queue(area, queue);
  watch_poke();
}

void KernelZcrxRing::register_queue(std::span<uint8_t> area, const ZcrxQueue& queue) {
  const uint64_t ring_bytes = kPageBytes + uint64_t{queue.refills} * sizeof(zcrx::Refill);
  region_ = Mapping::map_private((ring_bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  zcrx::Area memory = {};
  memory.address = queue.dma_buf < 0 ? number_of(area.data()) : 0;  // of a dma-buf: an offset
  memory.bytes = area.size();
  if (queue.dma_buf >= 0) {
    memory.flags = zcrx::kDmaBuf;
    memory.dma_buf = static_cast<uint32_t>(queue.dma_buf);
  }
  zcrx::Region region = {};
  region.address = number_of(region_.address());
  region.bytes = region_.bytes();
  region.flags = zcrx::kOwnMemory;
  zcrx::Registration call = {};
  call.interface = queue.interface;
  call.queue = queue.queue;
  call.entries = queue.refills;
  call.flags = has_nic_ ? 0 : zcrx::kWithoutNic;
  call.area = number_of(&memory);
  call.region = number_of(&region);
  if (::syscall(SYS_io_uring_register, ring_.ring.ring_fd, zcrx::kRegisterQueue, &call, 1) != 0) {
    const int error = errno;
    if (has_nic_)
      fail_errno(error,
                 "registering queue {} for io_uring's zero-copy receive (needs Linux 6.15, CAP_NET_ADMIN and "
                 "a driver "
                 "that takes memory for its queues)",
                 queue.queue);
    fail_errno(error,
               "registering io_uring's zero-copy receive without a NIC (needs Linux 7.1 and CAP_NET_ADMIN)");
  }
  id_ = call.id;
  refills_.emplace(region_.span(), call.offsets, call.entries, memory.token);
}

io_uring_sqe* KernelZcrxRing::entry() noexcept {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_.ring);
  if (entry != nullptr) return entry;
  (void)io_uring_submit(&ring_.ring);
  return io_uring_get_sqe(&ring_.ring);
}

void KernelZcrxRing::watch_poke() noexcept {
  io_uring_sqe* const poll = entry();
  if (poll == nullptr) return;
  io_uring_prep_poll_multishot(poll, poke_.get(), POLLIN);
  io_uring_sqe_set_data64(poll, kPoke);
}

void KernelZcrxRing::receive(int socket, uint32_t user) noexcept {
  io_uring_sqe* const request = entry();
  if (request == nullptr) return;
  io_uring_prep_rw(zcrx::kReceive, request, socket, nullptr, 0, 0);
  request->ioprio = IORING_RECV_MULTISHOT;
  request->file_index = id_;  // of the registration: the same place
  io_uring_sqe_set_data64(request, user);
}

void KernelZcrxRing::cancel(uint32_t user) noexcept {
  io_uring_sqe* const request = entry();
  if (request == nullptr) return;
  io_uring_prep_cancel64(request, user, 0);
  io_uring_sqe_set_data64(request, kIgnored);
}

int KernelZcrxRing::wait(bool for_completions) noexcept {
  if (!for_completions) {
    (void)io_uring_submit(&ring_.ring);
    pollfd poke = {poke_.get(), POLLIN, 0};
    (void)::poll(&poke, 1, -1);
    take_poke();
    return 0;
  }
  const int result = io_uring_submit_and_wait(&ring_.ring, 1);
  return result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY ? -result : 0;
}

bool KernelZcrxRing::next(ZcrxCompletion& out) noexcept {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_.ring, &cqe) == 0 && cqe != nullptr) {
    const uint64_t user = cqe->user_data;
    out = {static_cast<uint32_t>(user), cqe->res, (cqe->flags & IORING_CQE_F_MORE) != 0, cqe->big_cqe[0]};
    io_uring_cqe_seen(&ring_.ring, cqe);
    if (user < kIgnored) return true;
    if (user == kPoke) take_poke();
    if (user == kPoke && !out.more) watch_poke();
  }
  return false;
}

void KernelZcrxRing::flush(bool full) noexcept {
  if (has_nic_ && !full) return;  // its driver takes refills when it fills its queue
  zcrx::Control call = {};
  call.id = id_;
  call.what = zcrx::kTakeRefills;
  (void)::syscall(SYS_io_uring_register, ring_.ring.ring_fd, zcrx::kControl, &call, 0);
}

}  // namespace

std::unique_ptr<ZcrxRing> open_zcrx_ring(std::span<uint8_t> area, const ZcrxQueue& queue) {
  return std::make_unique<KernelZcrxRing>(area, queue);
}

#else

std::unique_ptr<ZcrxRing> open_zcrx_ring(std::span<uint8_t>, const ZcrxQueue&) {
  fail(Status::kUnsupported, "this build has no liburing, which zero-copy receive by io_uring needs");
}

#endif

}  // namespace towline::tcpx
