// The exporter BUFFER: a file of the last events, which NIXL's readers of telemetry map and empty.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include <telemetry_event.h>

namespace towline::nixl {

class TelemetryRing {
 public:
  // Makes the file, or takes the one that an earlier agent of this name has left. `events` is a power of two. Throws
  // std::runtime_error.
  TelemetryRing(const std::string& file, size_t events);
  ~TelemetryRing();
  TelemetryRing(const TelemetryRing&) = delete;
  TelemetryRing& operator=(const TelemetryRing&) = delete;

  // False if the reader is a whole ring behind: the event is lost, as with NIXL.
  bool push(const nixlTelemetryEvent& event) noexcept;

 private:
  struct Header;

  const size_t mask_;
  std::mutex mutex_;
  size_t next_ = 0;  // where the next event goes; what the file says a reader may have overwritten
  Header* header_ = nullptr;
  nixlTelemetryEvent* events_ = nullptr;
};

}  // namespace towline::nixl
