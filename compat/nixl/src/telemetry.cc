#include "telemetry.h"

#include <common/hostname.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "log.h"

namespace towline::nixl {

namespace {

using Event = nixl_telemetry_event_type_t;

constexpr const char* kCountsPrefix = "towline-nixl-counts.";
constexpr size_t kMostFiles = 4096;  // of a directory that are read
constexpr int64_t kAskAgainMs = 250;

[[noreturn]] void refuse_counts(const std::string& file, const char* what) {
  throw std::runtime_error(fmt::format("telemetry '{}': {}: {}", file, what, std::strerror(errno)));
}

int64_t now_ms() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

std::string ring_file(const std::string& directory, const std::string& agent) {
  if (agent.find('/') != std::string::npos || agent == "." || agent == "..")
    throw std::runtime_error(fmt::format(
        "the telemetry buffer of agent '{}' is a file of that name: it can't have a '/' in it", agent));
  return directory + "/" + agent;
}

// Nothing for what is no file of counts. `ended`: its writer is gone.
std::optional<CountsSnapshot> read_file(const std::string& file, bool& ended) {
  const ::nixl::scopedFd fd{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size != static_cast<off_t>(sizeof(TelemetryCounts)))
    return std::nullopt;
  std::vector<std::byte> bytes(sizeof(TelemetryCounts));
  if (::pread(fd.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return std::nullopt;
  // The writer holds its lock until it ends, in whatever way.
  ended = ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0;
  return read_counts(bytes);
}

}  // namespace

Telemetry::Telemetry(const std::string& agent, const TelemetrySettings& settings)
    : settings_(settings), process_(::getpid()) {
  if (settings_.exporter == TelemetryExporter::kNone) return;
  if (settings_.exporter == TelemetryExporter::kBuffer) {
    ring_ = std::make_unique<TelemetryRing>(ring_file(settings_.directory, agent), settings_.buffer_events);
    return;
  }
  if (settings_.exporter == TelemetryExporter::kPlugin) {
    plugin_ = ExporterPlugin::make(agent,
                                   {settings_.plugin, settings_.buffer_events, settings_.interval,
                                    is_enabled(nixl_telemetry_event_type_t::AGENT_TELEMETRY_EVENTS_DROPPED)});
    return;
  }
  make_counts({::nixl::getHostname().value_or("unknown"), agent, settings_.rank});
  if (settings_.exporter == TelemetryExporter::kPrometheusOfAll) {
    try_to_serve();
  } else if ((page_ = PageOfProcess::share(settings_.address)) != nullptr) {
    page_->add(counts_);
  }
}

Telemetry::~Telemetry() {
  if (::getpid() != process_) (void)plugin_.release();
  if (page_ != nullptr) page_->remove(counts_);
  page_.reset();
  own_exporter_.reset();
  if (counts_ != nullptr) (void)::munmap(static_cast<void*>(counts_), sizeof(TelemetryCounts));
}

void Telemetry::make_counts(const TelemetryIdentity& identity) {
  const bool shared = settings_.exporter == TelemetryExporter::kPrometheusOfAll;
  const std::string file = fmt::format("{}/{}{}-{}-{:x}", settings_.directory, kCountsPrefix, identity.host,
                                       process_, std::chrono::steady_clock::now().time_since_epoch().count());
  if (shared) {
    // Locked before it has its name, so that no reader takes it for one whose writer has ended.
    const std::string draft =
        fmt::format("{}/.{}", settings_.directory, file.substr(settings_.directory.size() + 1));
    counts_file_ = ::nixl::scopedFd{::open(draft.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644)};
    if (!counts_file_.valid()) refuse_counts(draft, "can't be made");
    const int error = ::posix_fallocate(counts_file_.get(), 0, sizeof(TelemetryCounts));
    const bool locked = error == 0 && ::flock(counts_file_.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked || ::rename(draft.c_str(), file.c_str()) != 0) {
      if (error != 0) errno = error;
      const int reason = errno;
      (void)::unlink(draft.c_str());
      errno = reason;
      refuse_counts(file, "can't be made");
    }
  }
  void* const memory = ::mmap(nullptr, sizeof(TelemetryCounts), PROT_READ | PROT_WRITE,
                              shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, counts_file_.get(), 0);
  if (memory == MAP_FAILED) refuse_counts(file, "can't be mapped");
  counts_ = static_cast<TelemetryCounts*>(memory);
  begin_counts(*counts_, identity, settings_.bounds, settings_.enabled);
}

// ---- Counting

bool Telemetry::is_enabled(Event type) const noexcept {
  return (settings_.enabled >> static_cast<unsigned>(type) & 1) != 0;
}

void Telemetry::note(std::span<const nixlTelemetryEvent> events) noexcept {
  constexpr size_t kMost = 4;  // of one call
  if (::getpid() != process_) return;
  std::array<nixlTelemetryEvent, kMost> enabled;
  size_t count = 0;
  for (const nixlTelemetryEvent& event : events.first(std::min(events.size(), kMost))) {
    if (is_enabled(event.eventType_)) enabled[count++] = event;
  }
  if (count == 0) return;
  if (plugin_ != nullptr) plugin_->push({enabled.data(), count});
  for (size_t i = 0; i < count; ++i) {
    if (ring_ != nullptr) (void)ring_->push(enabled[i]);
    if (counts_ != nullptr) count_event(*counts_, enabled[i].eventType_, enabled[i].value_);
  }
  if (settings_.exporter == TelemetryExporter::kPrometheusOfAll) serve_again();
}

void Telemetry::transferred(bool writes, uint64_t bytes, int64_t post_us, int64_t whole_us) noexcept {
  const nixlTelemetryEvent events[] = {
      {Event::AGENT_XFER_POST_TIME, static_cast<uint64_t>(std::max<int64_t>(post_us, 0))},
      {Event::AGENT_XFER_TIME, static_cast<uint64_t>(std::max<int64_t>(whole_us, 0))},
      {writes ? Event::AGENT_TX_BYTES : Event::AGENT_RX_BYTES, bytes},
      {writes ? Event::AGENT_TX_REQUESTS_NUM : Event::AGENT_RX_REQUESTS_NUM, 1}};
  note(events);
}

// ---- One page for all processes

// The process that served may have ended, so others try again a few times a second while they count.
void Telemetry::serve_again() noexcept {
  const int64_t now = now_ms();
  int64_t asked = asked_ms_.load(std::memory_order_relaxed);
  if (now - asked < kAskAgainMs) return;
  if (!asked_ms_.compare_exchange_strong(asked, now, std::memory_order_relaxed)) return;
  counts_->updated_s.store(std::time(nullptr), std::memory_order_relaxed);
  try_to_serve();
}

void Telemetry::try_to_serve() noexcept {
  const std::unique_lock lock(serving_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || own_exporter_ != nullptr || owner_.valid()) return;
  try {
    std::string name = fmt::format("{}/nixl-owner.{}.lock", settings_.directory, settings_.address);
    ::nixl::scopedFd owner{::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (!owner.valid() || ::flock(owner.get(), LOCK_EX | LOCK_NB) != 0) return;
    own_exporter_ = start_exporter(settings_.address, collect, this);
    // Kept although nothing is served: the address belongs to another program, and one line in the log is enough.
    owner_ = std::move(owner);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, fmt::format("counters are not served: {}", error.what()));
  }
}

std::vector<CountsSnapshot> Telemetry::read_directory() const {
  std::vector<CountsSnapshot> snapshots;
  size_t seen = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(settings_.directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kCountsPrefix)) continue;
    if (++seen > kMostFiles) break;
    bool ended = false;
    auto snapshot = read_file(entry->path(), ended);
    if (!snapshot) continue;
    // The last values of a process that has ended are served for a while.
    if (ended && std::time(nullptr) - snapshot->updated_s > settings_.stale_s) {
      (void)::unlink(entry->path().c_str());
      continue;
    }
    snapshots.push_back(std::move(*snapshot));
  }
  return snapshots;
}

void Telemetry::collect(void* telemetry, void (*take)(void* argument, const char* json, size_t bytes),
                        void* argument) {
  try {
    const std::string text = families_of(static_cast<const Telemetry*>(telemetry)->read_directory(), true)
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    take(argument, text.data(), text.size());
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, fmt::format("counters could not be read: {}", error.what()));
  }
}

}  // namespace towline::nixl
