// A window: ranks of one host access each other's mapped memory; ranks of other hosts use an agent.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "collectives/agent_window.h"
#include "collectives/cpu_backend.h"
#include "collectives/shm_window.h"

namespace towline::collectives {

class Window {
 public:
  // Collective. address null: allocates memory. Throws Error; if one rank can't share its memory, on every
  // rank.
  Window(CpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline);
  // Collective: when it returns, no rank uses the memory any more. Throws Error.
  void close(uint64_t number, Deadline deadline);

  // Any thread. Null: the rank is on another host.
  void* address(int rank) const noexcept;
  uint64_t bytes(int rank) const noexcept;
  // [offset, offset + bytes) lies in the rank's memory. kOk, or why the communicator broke.
  Status put(int rank, uint64_t offset, const void* from, uint64_t bytes);
  Status get(int rank, uint64_t offset, void* to, uint64_t bytes);
  Status signal(int rank);
  // kOk, kNotYet, or why the communicator broke.
  Status wait_signal(int rank, Deadline deadline) noexcept;

 private:
  void reach_other_hosts(std::string problem, uint64_t number, Deadline deadline);

  CpuBackend& backend_;
  std::unique_ptr<ShmWindow> here_;
  std::unique_ptr<AgentWindow> far_;  // if there are several hosts
};

}  // namespace towline::collectives
