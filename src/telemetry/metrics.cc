#include "telemetry/metrics.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/host_identity.h"

namespace towline {
namespace {

using counters::FileHeader;
using counters::Slot;

constexpr char kOtherName[] = "other";
constexpr uint32_t kOtherSlots = 2;  // slot 0 for tx, 1 for rx

void copy_name(std::span<char> to, std::string_view name) noexcept {
  const std::size_t bytes = std::min(to.size() - 1, name.size());
  std::memcpy(to.data(), name.data(), bytes);
  to[bytes] = '\0';
}

// The file's name: short and of plain characters, since it shows up in links under /proc and people read it.
std::string file_name(std::string_view agent_name) {
  constexpr std::size_t kMostNameBytes = 100;
  std::string name = counters::kFilePrefix;
  for (const char c : agent_name.substr(0, kMostNameBytes)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == ':';
    name += plain ? c : '_';
  }
  return name;
}

uint64_t realtime_now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

Metrics::Metrics(std::string_view agent_name, const Id& incarnation, const MetricsOptions& options)
    : max_series_(options.max_series) {
  if (max_series_ <= kOtherSlots || max_series_ > counters::kMostSeries) {
    fail(Status::kInvalidArgument, "counters of agent \"{}\": {} series, must be {} to {}", agent_name,
         max_series_, kOtherSlots + 1, counters::kMostSeries);
  }
  // Not reserved ahead: pages come as series are used, so that an idle agent costs little.
  const uint64_t bytes = counters::file_bytes(max_series_);
  fd_ = create_memfd(file_name(agent_name), bytes, {.reserve = false});
  mapping_ = Mapping::map_shared(fd_.get(), bytes, MapAccess::kReadWrite);
  seal_future_writes(fd_.get());

  auto* made = ::new (static_cast<void*>(mapping_.address())) FileHeader{};
  const HostIdentity host = read_host_identity();
  made->version = counters::kVersion;
  made->header_bytes = counters::kPageBytes;
  made->slot_bytes = sizeof(Slot);
  made->max_series = max_series_;
  made->shards = counters::kShards;
  made->latency_buckets = kLatencyBuckets;
  made->incarnation_hi = incarnation.hi;
  made->incarnation_lo = incarnation.lo;
  made->started_realtime_ns = realtime_now_ns();
  made->process_start_time = host.process_start_time;
  made->pid = host.pid;
  copy_name(made->agent, agent_name);
  const std::lock_guard lock(mutex_);
  add_series(kOtherName, kOtherName, Direction::kTx);
  add_series(kOtherName, kOtherName, Direction::kRx);
  // Last: a reader that finds the magic number finds the rest.
  made->magic.store(counters::kMagic, std::memory_order_release);
}

FileHeader& Metrics::header() noexcept {
  return *std::launder(reinterpret_cast<FileHeader*>(mapping_.address()));
}

Slot& Metrics::slot(uint32_t index) noexcept {
  return *(reinterpret_cast<Slot*>(mapping_.address() + counters::kPageBytes) + index);
}

Series* Metrics::series(std::string_view peer, std::string_view backend, Direction direction) {
  // As they are stored: names that are cut to the same share a series.
  const std::tuple<std::string, std::string, Direction> key{
      peer.substr(0, counters::kPeerNameBytes - 1), backend.substr(0, counters::kBackendNameBytes - 1),
      direction};
  const std::lock_guard lock(mutex_);
  if (const auto it = by_name_.find(key); it != by_name_.end()) return it->second;
  if (series_.size() >= max_series_) {  // not remembered: names beyond the bound cost no memory
    header().overflowed_series.fetch_add(1, std::memory_order_relaxed);
    return &series_[static_cast<uint32_t>(direction)];
  }
  Series* result = add_series(peer, backend, direction);
  by_name_.emplace(key, result);
  return result;
}

Series* Metrics::add_series(std::string_view peer, std::string_view backend, Direction direction) {
  const auto index = static_cast<uint32_t>(series_.size());
  // Default-initialised: the file's pages are zero already, and writing them would allocate them.
  auto* made = ::new (static_cast<void*>(&slot(index))) Slot;
  made->direction = static_cast<uint32_t>(direction);
  copy_name(made->peer, peer);
  copy_name(made->backend, backend);
  Series* result = &series_.emplace_back(*made);
  header().used_series.store(index + 1, std::memory_order_release);
  return result;
}

}  // namespace towline
