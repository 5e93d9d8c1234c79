#include "collectives/gpu/hops.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace towline::collectives::gpu {
namespace {

// Offsets of words in their page. Words that another side writes have a cache line each.
constexpr uint64_t kPosted = 0;
constexpr uint64_t kDone = 128;
constexpr uint64_t kAwaited = 256;
constexpr uint64_t kEntries = 512;
constexpr uint64_t kPage = 4096;
static_assert(kEntries + uint64_t{kHopRing} * kHopWords * 8 <= kPage);

// After the last hop it looks often for so long, then now and then.
constexpr uint64_t kBusyNs = kMillisecondNs;
constexpr auto kPause = std::chrono::microseconds(50);

}  // namespace

Hops::Hops(cuda::KernelDevice& device, uint32_t gpu, uint64_t bytes, uint32_t ahead, Run run, void* context)
    : ahead_(ahead),
      run_(run),
      context_(context),
      words_(device.make_words(gpu, kPage)),
      memory_(device.make_words(gpu, bytes)) {
  if (reinterpret_cast<uint64_t>(memory_->host()) != memory_->gpu())
    fail(Status::kUnsupported, "GPU {} reaches pinned memory at other addresses than processors do", gpu);
  device::store_release(reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(words_->host()) + kDone), ahead_);
  thread_ = std::thread([this] { work(); });
}

Hops::~Hops() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Hops::make_post(Job& job, const uint64_t* words) const noexcept {
  job.way = Way::kPost;
  for (uint32_t i = 0; i < kHopWords; ++i) {
    uint64_t* const rows[] = {job.in, job.in_bytes, job.out, job.out_bytes};
    rows[i / kMaxRanks][i % kMaxRanks] = words[i];
  }
  job.residual = words_->gpu() + kPosted;
  job.weight = words_->gpu() + kEntries;
}

void Hops::make_await(Job& job) const noexcept {
  job.way = Way::kAwait;
  job.in[0] = words_->gpu() + kDone;
  job.in[1] = words_->gpu() + kAwaited;
  job.peer = job.rank;
}

void Hops::expect(uint64_t posts, bool in_graph) {
  const std::lock_guard lock(mutex_);
  if (in_graph)
    in_graphs_ = true;
  else
    expected_ += posts;
  changed_.notify_all();
}

bool Hops::idle(uint64_t handled) const noexcept { return !in_graphs_ && expected_ <= handled; }

void Hops::work() {
  auto* const page = static_cast<uint8_t*>(words_->host());
  const auto* const posted = reinterpret_cast<const uint64_t*>(page + kPosted);
  auto* const done = reinterpret_cast<uint64_t*>(page + kDone);
  const auto* const entries = reinterpret_cast<const uint64_t*>(page + kEntries);
  uint64_t handled = 0;
  uint64_t last_ns = monotonic_now_ns();
  for (;;) {
    if (device::load_acquire(posted) == handled) {
      if (stop_) return;
      if (idle(handled)) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !idle(handled); });
        last_ns = monotonic_now_ns();
      } else if (monotonic_now_ns() - last_ns < kBusyNs) {
        ::sched_yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
      continue;
    }
    std::array<uint64_t, kHopWords> words;
    std::memcpy(words.data(), entries + handled % kHopRing * kHopWords, sizeof words);
    if (run_(context_, words.data()) < 0) return;  // kernels that wait are told to end
    device::store_release(done, ++handled + ahead_);
    last_ns = monotonic_now_ns();
  }
}

}  // namespace towline::collectives::gpu
