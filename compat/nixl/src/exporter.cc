#include "exporter.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "log.h"

namespace towline::nixl {

SharedExporter start_exporter(const std::string& address, towline_metric_source_t source, void* context) {
  towline_exporter_t* started = nullptr;
  if (towline_exporter_start(nullptr, address.c_str(), &started) < 0) {
    log(LogLevel::kWarning,
        fmt::format("counters are not served at {} by this process: {}", address, towline_last_error()));
    return nullptr;
  }
  SharedExporter exporter(started, towline_exporter_stop);
  if (source != nullptr) (void)towline_exporter_add(started, source, context);
  return exporter;
}

std::shared_ptr<PageOfProcess> PageOfProcess::share(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<PageOfProcess>> pages;
  const std::lock_guard lock(mutex);
  if (auto known = pages[address].lock()) return known;
  auto page = std::make_shared<PageOfProcess>();
  page->exporter_ = start_exporter(address, collect, page.get());
  if (page->exporter_ == nullptr) return nullptr;
  pages[address] = page;
  return page;
}

void PageOfProcess::add(const TelemetryCounts* counts) {
  const std::lock_guard lock(mutex_);
  counts_.push_back(counts);
}

void PageOfProcess::remove(const TelemetryCounts* counts) {
  const std::lock_guard lock(mutex_);
  std::erase(counts_, counts);
}

void PageOfProcess::collect(void* page, void (*take)(void* argument, const char* json, size_t bytes),
                            void* argument) {
  try {
    auto& self = *static_cast<PageOfProcess*>(page);
    std::vector<CountsSnapshot> snapshots;
    {
      const std::lock_guard lock(self.mutex_);
      for (const TelemetryCounts* counts : self.counts_) {
        if (auto snapshot = read_counts(*counts)) snapshots.push_back(std::move(*snapshot));
      }
    }
    const std::string text =
        families_of(snapshots, false).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    take(argument, text.data(), text.size());
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, fmt::format("counters could not be read: {}", error.what()));
  }
}

}  // namespace towline::nixl
