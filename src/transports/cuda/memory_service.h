// Shares GPU memory between processes of a host: the owner listens on a Unix socket; a process asks for a
// region part by part and gets each part's descriptor or handle (wire.h). The kernel identifies the client:
// only processes of the same user get answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "towline/plugin/backend.hpp"
#include "transports/cuda/wire.h"

namespace towline::cuda {

// The owner's side. Worker 0, under its lock.
class MemoryService {
 public:
  // Finds one part of a region of ours. The descriptor in the answer is given away.
  using Find = std::function<Answer(const Ask&)>;

  // Listens. Throws Error.
  MemoryService(const plugin::Host& host, Find find);
  MemoryService(const MemoryService&) = delete;
  MemoryService& operator=(const MemoryService&) = delete;
  ~MemoryService();

  // A handler threw.
  void broken(const char* why) noexcept;

 private:
  struct Visitor {
    MemoryService* service;
    UniqueFd socket;

    void socket_ready(uint32_t) { service->hear(*this); }
    void broken(const char*) noexcept { service->dismiss(*this); }
  };

  void accept_visitors(uint32_t events);
  void hear(Visitor& visitor);
  void dismiss(Visitor& visitor) noexcept;

  const plugin::Host host_;
  const Find find_;
  std::string socket_file_;  // to be removed at the end
  UniqueFd listener_;
  UniqueFd spare_;  // given up for a moment when descriptors have run out, to turn a visitor away
  std::vector<std::unique_ptr<Visitor>> visitors_;
};

// The asker's side: one region's parts, fetched without blocking. One worker, under its lock.
class MemoryRequest {
 public:
  MemoryRequest(const plugin::Host& host, uint32_t worker) : host_(host), worker_(worker) {}
  MemoryRequest(const MemoryRequest&) = delete;
  MemoryRequest& operator=(const MemoryRequest&) = delete;
  ~MemoryRequest() { stop(); }

  // Begins. kOk, kAgain, or why not, with `text`.
  Status start(const uint64_t incarnation[2], uint64_t key, std::string& text);
  // kAgain until the last part is there; an error with `text`. The worker is woken when more has come.
  Status step(const towline_region_ref& region, std::string& text);
  [[nodiscard]] const std::vector<Shared>& parts() const noexcept { return parts_; }
  [[nodiscard]] std::vector<Shared>& parts() noexcept { return parts_; }

 private:
  Status ask(std::string& text);
  void stop() noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  UniqueFd socket_;
  Ask ask_;
  std::vector<Shared> parts_;
};

}  // namespace towline::cuda
