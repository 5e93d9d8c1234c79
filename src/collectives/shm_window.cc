#include "collectives/shm_window.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/wire.h"

namespace towline::collectives {
namespace {

UniqueFd open_of_process(uint32_t process, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, fd);
  UniqueFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened) fail_errno(errno, "cannot open {}", path);
  return opened;
}

}  // namespace

ShmWindow::ShmWindow(CpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline)
    : backend_(backend), ranks_(static_cast<size_t>(backend.group().size())), taken_(ranks_.size()) {
  UniqueFd signals_fd;
  SharedRange range;
  std::string problem;
  std::vector<uint8_t> mine;
  try {
    mine = offer(address, bytes, signals_fd, range);
  } catch (const Error& error) {
    problem = error.message();
    mine.clear();
  }
  std::vector<std::vector<uint8_t>> offers;
  ShmGroup& group = backend.group();
  if (const Status status =
          group.exchange(window_header(kOpenWindowOp, number, 0), mine.data(), mine.size(), offers, deadline);
      is_error(status))
    fail(status, "{}", backend.breaker().breakage().text);
  for (int rank = 0; rank < size() && problem.empty(); ++rank) {
    try {
      if (!offers[static_cast<size_t>(rank)].empty()) open(rank, offers[static_cast<size_t>(rank)]);
    } catch (const Error& error) {
      problem = fmt::format("it cannot reach rank {}'s: {}", backend.group().rank(rank), error.message());
    }
  }
  if (problem.size() > 1000) problem.resize(1000);
  // Every rank has opened the memory it needs, and learns here whether all ranks could.
  std::vector<std::vector<uint8_t>> problems;
  if (const Status status = group.exchange(window_header(kOpenWindowOp, number, 1), problem.data(),
                                           problem.size(), problems, deadline);
      is_error(status))
    fail(status, "{}", backend.breaker().breakage().text);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty())
      fail(Status::kUnsupported, "no window: rank {}: {}", group.rank(static_cast<int>(rank)),
           std::string(problems[rank].begin(), problems[rank].end()));
  }
}

// The data with which others map this rank's memory: process, descriptors, offset in the file, size.
std::vector<uint8_t> ShmWindow::offer(void* address, uint64_t bytes, UniqueFd& signals_fd,
                                      SharedRange& range) {
  const auto me = static_cast<size_t>(backend_.group().index());
  const uint64_t signal_bytes = (sizeof(Signals) * ranks_.size() + 4095) / 4096 * 4096;
  signals_fd = create_memfd("towline-signals", signal_bytes);
  ranks_[me].signals = Mapping::map_shared(signals_fd.get(), signal_bytes, MapAccess::kReadWrite);
  ranks_[me].bytes = bytes;
  if (bytes != 0) {
    if (address == nullptr) {
      allocated_ = SharedMemory::allocate(bytes, 0);
      address = allocated_->address();
    }
    if (size() > 1) share(address, bytes, range);
  }
  ranks_[me].address = static_cast<uint8_t*>(address);
  std::vector<uint8_t> encoded;
  WireWriter out(encoded);
  out.u32(static_cast<uint32_t>(::getpid()));
  out.i32(signals_fd.get());
  out.i32(range.file != nullptr ? range.file->fd() : -1);
  out.u64(range.offset);
  out.u64(bytes);
  return encoded;
}

void ShmWindow::share(void* address, uint64_t bytes, SharedRange& range) {
  std::string reason;
  range = find_shared_range(address, bytes, reason);
  if (range.file == nullptr) {
    shared_ = share_in_place(address, bytes);
    range = find_shared_range(address, bytes, reason);
  }
  if (range.file == nullptr || !range.file->writable())
    fail(Status::kUnsupported, "memory that can't be shared: {}",
         reason.empty() ? "its file is read-only" : reason);
}

void ShmWindow::open(int rank, const std::vector<uint8_t>& offer) {
  if (rank == backend_.group().index()) return;
  Rank& other = ranks_[static_cast<size_t>(rank)];
  WireReader in(offer);
  const uint32_t process = in.u32();
  const int signals_fd = in.i32();
  const int memory_fd = in.i32();
  const uint64_t offset = in.u64();
  other.bytes = in.u64();
  if (!in.finished()) fail(Status::kProtocol, "its offer is not understood");
  const uint64_t signal_bytes = (sizeof(Signals) * ranks_.size() + 4095) / 4096 * 4096;
  const UniqueFd signals = open_of_process(process, signals_fd);
  require_sealed(signals.get(), signal_bytes);
  other.signals = Mapping::map_shared(signals.get(), signal_bytes, MapAccess::kReadWrite);
  if (other.bytes == 0) return;
  const UniqueFd memory = open_of_process(process, memory_fd);
  const uint64_t begin = offset / 4096 * 4096;
  const uint64_t there = file_bytes(memory.get());
  if (offset > there || other.bytes > there - offset)
    fail(Status::kOutOfRange, "its file is shorter than it says");
  other.memory =
      Mapping::map_shared(memory.get(), offset - begin + other.bytes, MapAccess::kReadWrite, begin);
  other.address = other.memory.address() + (offset - begin);
}

Status ShmWindow::close(uint64_t number, Deadline deadline) {
  std::vector<std::vector<uint8_t>> none;
  return backend_.group().exchange(window_header(kCloseWindowOp, number, 0), nullptr, 0, none, deadline);
}

void ShmWindow::signal(int rank) noexcept {
  signals(rank, backend_.group().index()).count.fetch_add(1, std::memory_order_release);
  backend_.group().notify();
}

Status ShmWindow::wait_signal(int rank, Deadline deadline) noexcept {
  const std::atomic<uint64_t>& count = signals(backend_.group().index(), rank).count;
  std::atomic<uint64_t>& taken = taken_[static_cast<size_t>(rank)];
  const auto take = [&] {
    uint64_t seen = taken.load(std::memory_order_relaxed);
    while (seen < count.load(std::memory_order_acquire)) {
      if (taken.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) return true;
    }
    return false;
  };
  SpinWait spin(2000, 64);
  while (spin.again())
    if (take()) return Status::kOk;
  ShmGroup& group = backend_.group();
  for (;;) {
    const uint32_t seen = group.announce();
    const bool there = take();
    const bool broken = backend_.breaker().broken() || group.broken();
    if (!there && !broken) group.sleep(seen, deadline.ns());
    group.retire();
    if (there || take()) return Status::kOk;
    if (broken) return group.broken() ? group.breakage().status : backend_.breaker().status();
    if (deadline.passed(monotonic_now_ns())) return Status::kNotYet;
  }
}

}  // namespace towline::collectives
