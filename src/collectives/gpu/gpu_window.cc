#include "collectives/gpu/gpu_window.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/memory_pool.h"
#include "collectives/gpu/operations.h"
#include "collectives/gpu/window_operations.h"

namespace towline::collectives::gpu {
namespace {

// Slots of each pair of ranks for kernels. Applications were told that the last is not theirs.
constexpr uint32_t kSlots = 64;
// The signals of the host's calls have as many channels. Behind the slots lie a word for each rank and channel, which that
// rank counts up, and then as many that count the signals that were waited for.
constexpr uint32_t kChannels = 64;
uint64_t counted_at(uint32_t size, uint32_t rank, uint64_t channel) {
  return (uint64_t{size} * kSlots + uint64_t{rank} * kChannels + channel) * sizeof(uint64_t);
}
uint64_t taken_at(uint32_t size, uint32_t rank, uint64_t channel) {
  return counted_at(size, size + rank, channel);
}

class LentPiece final : public cuda::SharedPiece {
 public:
  LentPiece(uint64_t address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  [[nodiscard]] uint64_t address() const noexcept override { return address_; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] UniqueFd descriptor() const override {
    fail(Status::kUnsupported, "the application's memory has no descriptor");
  }
  void let_reach(uint32_t) override {}
  [[nodiscard]] bool lent() const noexcept override { return true; }

 private:
  const uint64_t address_;
  const uint64_t bytes_;
};

}  // namespace

GpuWindow::GpuWindow(GpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline)
    : backend_(backend), words_(backend.device_.make_words(backend.gpu_, kMaxRanks * sizeof(uint64_t))) {
  const std::string prefix = fmt::format("window/{}/", number);
  const uint64_t signal_bytes = taken_at(backend.size_, backend.size_, 0);
  cuda::SymmetricMemory::Part part;
  cuda::SymmetricMemory::Part signals{nullptr, 0, signal_bytes};
  try {
    part = part_of(address, bytes);
    signals.piece = backend.device_.allocate(backend.gpu_, signal_bytes);
  } catch (const Error& error) {
    cuda::SymmetricMemory::refuse(backend.board(), prefix + "memory/", backend.rank_, error.message());
    throw;
  }
  memory_ = std::make_unique<cuda::SymmetricMemory>(backend.device_, backend.gpu_, std::move(part), words_,
                                                    backend.rank_, backend.size_, backend.board(), deadline,
                                                    prefix + "memory/");
  signals_ = std::make_unique<cuda::SymmetricMemory>(backend.device_, backend.gpu_, std::move(signals),
                                                     words_, backend.rank_, backend.size_, backend.board(),
                                                     deadline, prefix + "signals/");
  // The communicator's own memory tells of ranks that are gone.
  memory_->stop_watching();
  signals_->stop_watching();
}

// This rank's memory: new, of the pool, or the application's.
cuda::SymmetricMemory::Part GpuWindow::part_of(void* address, uint64_t bytes) const {
  if (address == nullptr)
    return {backend_.device_.allocate(backend_.gpu_, std::max<uint64_t>(bytes, 1)), 0, bytes};
  backend_.check_address(address, "the window's memory");
  PoolPart found = pool_find(reinterpret_cast<uint64_t>(address), bytes);
  if (found.piece == nullptr)
    return {std::make_shared<LentPiece>(reinterpret_cast<uint64_t>(address), bytes), found.offset, bytes};
  return {std::move(found.piece), found.offset, bytes};
}

Status GpuWindow::close(uint64_t number, Deadline deadline) {
  towline_collective_t barrier = {};
  barrier.struct_size = sizeof barrier;
  barrier.op = TOWLINE_COLLECTIVE_BARRIER;
  return backend_.perform(barrier, number, deadline);
}

void* GpuWindow::address(uint32_t rank) const noexcept {
  return memory_->bytes(rank) == 0 ? nullptr : reinterpret_cast<void*>(memory_->address(rank));
}

device::Symmetric GpuWindow::symmetric() const noexcept {
  device::Symmetric made = {};
  made.bytes = memory_->bytes(backend_.rank_);
  for (uint32_t rank = 0; rank < backend_.size_; ++rank) {
    made.memory[rank] = memory_->address(rank);
    made.signals[rank] = signals_->address(rank);
    made.bytes = std::min(made.bytes, memory_->bytes(rank));
  }
  made.rank = backend_.rank_;
  made.size = backend_.size_;
  made.slots = kSlots;
  return made;
}

// ---- Kernels

GpuWindow::Launch GpuWindow::move(uint64_t to, uint64_t from, uint64_t bytes) const {
  Launch made{backend_.base_, kMovingKernel, backend_.blocks_for(bytes)};
  made.job.way = Way::kMove;
  made.job.in[0] = from;
  made.job.out[0] = to;
  made.job.bytes = bytes;
  made.job.mark.op = kPutOp;
  made.job.mark.count = bytes;
  return made;
}

GpuWindow::Launch GpuWindow::signal_launch(uint32_t rank, uint64_t channel) const {
  Launch made{backend_.base_, kMovingKernel, 1};
  made.job.way = Way::kSignal;
  made.job.in[0] = signals_->address(rank) + counted_at(backend_.size_, backend_.rank_, channel);
  made.job.mark.op = kSignalOp;
  made.job.mark.root = backend_.called_[rank];
  return made;
}

GpuWindow::Launch GpuWindow::await_launch(uint32_t rank, uint64_t channel, uint64_t timeout_ns) const {
  Launch made{backend_.base_, kMovingKernel, 1};
  const uint64_t mine = signals_->address(backend_.rank_);
  made.job.way = Way::kAwait;
  made.job.in[0] = mine + counted_at(backend_.size_, rank, channel);
  made.job.in[1] = mine + taken_at(backend_.size_, rank, channel);
  made.job.timeout_ns = timeout_ns;
  made.job.peer = rank;
  made.job.mark.op = kWaitSignalOp;
  made.job.mark.root = backend_.called_[rank];
  return made;
}

Status GpuWindow::run(Channel& channel, const Launch& launch) {
  if (backend_.breaker_.broken()) return backend_.breaker_.status();
  backend_.launch(channel, launch, backend_.own_stream(channel, false), 0, nullptr);
  return backend_.wait_for(channel, Deadline::never(), [&] { return text_of(launch.job.mark); });
}

Status GpuWindow::put(uint32_t rank, uint64_t offset, const void* from, uint64_t bytes) {
  if (bytes == 0) return Status::kOk;
  backend_.check_address(from, "the source");
  return run(moves_, move(memory_->address(rank) + offset, reinterpret_cast<uint64_t>(from), bytes));
}

Status GpuWindow::get(uint32_t rank, uint64_t offset, void* to, uint64_t bytes) {
  if (bytes == 0) return Status::kOk;
  backend_.check_address(to, "the target");
  return run(moves_, move(reinterpret_cast<uint64_t>(to), memory_->address(rank) + offset, bytes));
}

Status GpuWindow::signal(uint32_t rank) { return run(moves_, signal_launch(rank, 0)); }

Status GpuWindow::wait_signal(uint32_t rank, Deadline deadline) {
  const std::lock_guard one(one_wait_[rank]);
  auto* const outcome = static_cast<uint64_t*>(words_->host()) + rank;
  device::store_release(outcome, 0);
  const uint64_t now = monotonic_now_ns();
  Launch made = await_launch(rank, 0, UINT64_MAX);
  made.job.bytes = deadline.passed(now) ? 0 : deadline.ns() - now;
  made.job.out[0] = words_->gpu() + rank * sizeof(uint64_t);
  const Status status = run(waits_[rank], made);
  if (is_error(status) || device::load_acquire(outcome) == kSignalCame) return status;
  return backend_.breaker_.broken() ? backend_.breaker_.status() : Status::kNotYet;
}

void GpuWindow::issue(const towline_window_call_t& call, uint64_t timeout_ns, void* stream) {
  (void)backend_.graph_of(stream);  // refuses streams of other GPUs
  if (call.channel >= kChannels)
    fail(Status::kOutOfRange, "channel {} is out of range for signals, which have {}", call.channel,
         kChannels);
  const auto rank = static_cast<uint32_t>(call.rank);
  const auto local = reinterpret_cast<uint64_t>(call.address);
  const uint64_t there = memory_->address(rank) + call.offset;
  const auto enqueue = [&](const Launch& launch) {
    const cuda::Code code = backend_.enqueue(launch, stream);
    if (code != 0)
      fail(Status::kIo, "{}: the GPU's driver refused the kernel: {}", text_of(launch.job.mark),
           backend_.device_.code_text(code));
  };
  switch (call.op) {
    case TOWLINE_WINDOW_PUT:
    case TOWLINE_WINDOW_GET:
      if (call.bytes == 0) return;
      backend_.check_address(call.address, "the buffer");
      return call.op == TOWLINE_WINDOW_PUT ? enqueue(move(there, local, call.bytes))
                                           : enqueue(move(local, there, call.bytes));
    case TOWLINE_WINDOW_SIGNAL:
      return enqueue(signal_launch(rank, call.channel));
    case TOWLINE_WINDOW_WAIT_SIGNAL:
      return enqueue(await_launch(rank, call.channel, timeout_ns));
    default:
      fail(Status::kInvalidArgument, "there is no operation {} of windows", call.op);
  }
}

}  // namespace towline::collectives::gpu
