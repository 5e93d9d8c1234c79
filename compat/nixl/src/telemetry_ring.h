// The exporter BUFFER: a file of the last events, which NIXL's readers of telemetry map and empty.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include <common/cyclic_buffer.h>
#include <common/scoped_fd.h>
#include <telemetry_event.h>

namespace towline::nixl {

class TelemetryRing {
 public:
  // Goes on in the ring that an ended agent of this name has left, if it has as many events: what was not read stays, and
  // a reader reads on. Else a new file takes the place of the old one, which its readers keep. `events` is a power of two.
  // Throws std::runtime_error.
  TelemetryRing(const std::string& file, size_t events);
  ~TelemetryRing();
  TelemetryRing(const TelemetryRing&) = delete;
  TelemetryRing& operator=(const TelemetryRing&) = delete;

  // False if the reader is a whole ring behind: the event is lost, as with NIXL.
  bool push(const nixlTelemetryEvent& event) noexcept;

 private:
  [[nodiscard]] bool take_over(const std::string& file);
  void make(const std::string& file);
  void map(const std::string& file);
  void unmap() noexcept;
  [[nodiscard]] size_t bytes() const noexcept;

  const size_t mask_;
  ::nixl::scopedFd fd_;  // locked while this agent writes
  std::mutex mutex_;
  size_t next_ = 0;  // where the next event goes; what the file says a reader may have overwritten
  ::nixl::ringHeader* header_ = nullptr;
  nixlTelemetryEvent* events_ = nullptr;
};

}  // namespace towline::nixl
