#include "exporter.h"

#include <map>
#include <mutex>

#include "log.h"

namespace towline::nixl {

SharedExporter share_exporter(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<towline_exporter_t>> running;
  const std::lock_guard lock(mutex);
  if (SharedExporter known = running[address].lock()) return known;
  towline_exporter_t* started = nullptr;
  if (towline_exporter_start(nullptr, address.c_str(), &started) < 0) {
    log(LogLevel::kWarning,
        fmt::format("counters are not served at {} by this process: {}", address, towline_last_error()));
    return nullptr;
  }
  SharedExporter exporter(started, towline_exporter_stop);
  running[address] = exporter;
  return exporter;
}

}  // namespace towline::nixl
