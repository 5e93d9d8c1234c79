// A communicator on GPUs of several hosts. An operation is a row of steps (towline/plugin/collective.h): the backend of
// the GPUs works among the ranks of this host, and hops between hosts go over the CPU backend's mesh. Ranks with the same
// index on their hosts form a *column*, and each column moves its part (cpu_hosts.cc has the same algorithms).
//
// Steps are enqueued in a stream. A hop reads and writes *staging*: memory that the GPU and processors reach, in two
// halves, so that one chunk crosses while the GPU works on the next. A thread of the GPUs' backend runs hops, and no
// other thread performs operations of the mesh. Messages have hops of their own (hosts_messages.h).
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "collectives/cpu_backend.h"
#include "collectives/hosts_messages.h"
#include "collectives/hosts_steps.h"
#include "collectives/hosts_windows.h"
#include "collectives/tcp_group.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

class HostsBackend {
 public:
  // `inside`: the GPUs' backend, with steps. `hosts`: the ranks of each host. Collective. Throws Error.
  HostsBackend(const towline_collective_open_args& args, const towline_collective_table_v1_t& inside,
               std::vector<std::vector<int>> hosts);
  HostsBackend(const HostsBackend&) = delete;
  HostsBackend& operator=(const HostsBackend&) = delete;
  ~HostsBackend();

  // Throws Error for what this rank alone can see; message null: in the stream itself.
  void issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream,
             towline_collective_message** message);
  void issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns, void* stream);
  Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline);
  // A message. Any thread.
  towline_collective_message* start(const towline_collective_t& call);
  void abort(Status status, const std::string& text);
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Breaker& breaker() const noexcept { return cpu_->breaker(); }
  [[nodiscard]] const towline_collective_host_v1_t* host() const noexcept { return host_; }
  [[nodiscard]] const std::string& key_prefix() const noexcept { return prefix_; }
  // The backend among the ranks of this host.
  [[nodiscard]] const towline_collective_table_v1_t& inside_table() const noexcept { return table_; }
  [[nodiscard]] towline_collective_backend* inside() const noexcept { return inside_; }
  // Checks the status of a call into inside(). Throws Error with its text, or with the reason why the communicator broke.
  void check_inside(int32_t status) const;

  // For windows.
  [[nodiscard]] CpuBackend& cpu() const noexcept { return *cpu_; }
  [[nodiscard]] HostsWindows& windows() const noexcept { return *windows_; }
  [[nodiscard]] size_t hosts() const noexcept { return layout_.hosts.size(); }
  // A rank's index on this host; < 0: it is on another one.
  [[nodiscard]] int32_t index_here(int32_t rank) const noexcept;
  [[nodiscard]] uint64_t gpu() const;  // the number of this rank's. Throws Error

 private:
  void open_inside(const towline_collective_open_args& args);
  void open_strands(towline_collective_backend* inside);
  Status run(const Hop& hop);
  Status exchange(const Hop& hop);
  [[nodiscard]] nlohmann::json describe_inside() const;
  void stop_inside(int32_t status, const char* text);
  void close_inside();
  [[nodiscard]] bool to_another_host(const towline_collective_t& call) const;
  [[nodiscard]] towline_collective_t inside_message(const towline_collective_t& call) const;

  const towline_collective_host_v1_t* const host_;
  const towline_collective_table_v1_t& table_;
  const int rank_;
  const int size_;
  HostsLayout layout_;
  towline_collective_host_v1_t cpu_host_ = {};
  towline_collective_host_v1_t inside_host_ = {};
  std::string prefix_;  // of the store's keys of this host
  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<TcpGroup> column_;
  std::unique_ptr<HostsMessages> messages_;
  std::unique_ptr<HostsWindows> windows_;
  Call hop_call_;  // of the thread that runs hops, as the next two
  std::vector<TcpMesh::Message> moved_;
  std::vector<const void*> sources_;
  std::mutex inside_mutex_;  // guards inside_ against the mesh's watcher
  towline_collective_backend* inside_ = nullptr;
  HostsSteps steps_;  // of the thread that issues
};

// The ranks of each host; one host: all of them can work together without hops. Collective. Throws Error.
std::vector<std::vector<int>> find_hosts(rendezvous::Store& store, int rank, int size,
                                         const std::string& label, Deadline deadline);

// The table of such backends, but for open: use open_over_hosts.
const towline_collective_table_v1_t& hosts_table();
int32_t open_over_hosts(const towline_collective_open_args& args, const towline_collective_table_v1_t& inside,
                        const std::vector<std::vector<int>>& hosts, towline_collective_backend** backend);

}  // namespace towline::collectives
