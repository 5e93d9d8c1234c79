// The backend of processors' memory: shared memory on a host, TCP between hosts.
//
// Threads. The communicator's threads call perform; any thread calls the message functions; one thread of the
// backend watches for ended processes, broken groups and connections, and sleeps otherwise.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/os/unique_fd.h"
#include "base/sync/wake.h"
#include "collectives/breaker.h"
#include "collectives/calls/call.h"
#include "collectives/host_store.h"
#include "collectives/messages.h"
#include "collectives/shm_group.h"
#include "collectives/tcp_group.h"
#include "collectives/tcp_mesh.h"
#include "rendezvous/rank_info.h"
#include "towline/plugin/collective.h"

namespace towline {
class Agent;
}

namespace towline::collectives {

class CpuBackend {
 public:
  // Returns when all ranks have arrived. Throws Error.
  explicit CpuBackend(const towline_collective_open_args& args);
  ~CpuBackend();

  // A failure's reason is the breaker's.
  Status perform(const towline_collective_t& call, uint64_t number, Deadline deadline);
  // Whether the call is the one that was performed last, so that it need not be checked again. Called as perform is.
  bool is_last(const towline_collective_t& call) const noexcept { return same_call(call, taken_); }
  // The same as perform for a small operation on one host; `again`: what is_last says of the call.
  Status perform_small(const towline_collective_t& call, bool again, uint64_t number, LateDeadline& late);
  MessageEngine& messages() { return *messages_; }
  void message_wait(uint64_t until_ns);
  void abort(Status status, const std::string& text) { breaker_.raise(status, text); }
  std::string describe() const;
  const Breaker& breaker() const { return breaker_; }
  Breaker& breaker() { return breaker_; }
  bool one_host() const { return hosts_.size() == 1; }
  ShmGroup& group() { return *group_; }
  TcpMesh& mesh() { return *mesh_; }  // of several hosts
  Arrivals& arrivals() { return arrivals_; }
  int size() const { return size_; }
  int rank() const { return rank_; }
  const std::vector<rendezvous::RankInfo>& ranks() const { return infos_; }
  // A rank's index in the group of this host; < 0: it is on another host.
  int index_here(int rank) const noexcept { return index_here_[static_cast<size_t>(rank)]; }
  // Collective, called like perform: every rank gives some bytes and receives those of all ranks. For control
  // data of windows.
  Status exchange(const Header& header, const void* mine, uint64_t bytes,
                  std::vector<std::vector<uint8_t>>& all, Deadline deadline);
  // The agent through which windows, of memory of GPUs or of processors, reach other hosts; made by the first window. Throws
  // Error. Called like perform.
  const std::shared_ptr<Agent>& window_agent(bool gpus);

 private:
  struct Watched {
    UniqueFd process;  // a pidfd
    int index;         // in the group
    bool ended = false;
  };

  std::string setting(const char* key, const char* fallback) const;
  uint64_t size_setting(const char* key, uint64_t fallback) const;
  void exchange_infos(Deadline deadline);
  void share_memory(Deadline deadline);
  Mapping open_arena(const std::vector<int>& host, UniqueFd& created, Deadline deadline);
  void watch_processes();
  void watch() noexcept;
  void watch_once(std::vector<pollfd>& polled, bool& told);
  void warn_of_delays(uint64_t now_ns);
  Breakage agree(Breakage reason);
  void take(const towline_collective_t& call, bool again, uint64_t number);
  Status perform_taken(uint64_t number);
  Status out_of_memory();
  Status run(Call& call);
  Status run_on_host(const Call& call, ShmGroup& group);
  // In cpu_hosts.cc. They may change the call.
  void make_groups();
  int leader_of_host(int root) const;
  TcpGroup* leaders(int root);
  bool first_of_host(int rank) const;
  Status compare_hosts(const Call& call);
  Status run_between_hosts(Call& call);
  Status barrier_between_hosts(Call& call);
  Status all_reduce_between_hosts(Call& call);
  Status all_reduce_by_leaders(const Call& call);
  Status all_reduce_by_columns(const Call& call);
  Status reduce_between_hosts(Call& call);
  Status broadcast_between_hosts(Call& call);
  Status all_gather_between_hosts(Call& call);
  Status all_gather_by_leaders(const Call& call);
  Status reduce_scatter_between_hosts(Call& call);
  Status reduce_scatter_by_leaders(const Call& call);
  Status gather_between_hosts(Call& call);
  Status scatter_between_hosts(Call& call);
  struct Rows {
    Parts hosts;                  // one for all ranks of each host
    Parts here;                   // one for each rank of this host
    std::vector<uint8_t*> ranks;  // one for every rank
  };
  Rows rows_of(uint64_t bytes);
  Status straight_with_root(const Call& call);
  Status all_to_all_between_hosts(Call& call);

  const towline_collective_host_v1_t& host_;
  HostStore store_{host_};
  const int rank_;
  const int size_;
  const uint32_t flags_;
  const uint64_t timeout_ns_;  // of forming, and of operations without one
  const std::string name_;
  uint64_t warn_ns_ = 0;  // an operation that takes longer is logged
  ShmSettings settings_;
  std::vector<rendezvous::RankInfo> infos_;
  std::vector<std::vector<int>> hosts_;
  size_t my_host_ = 0;
  std::vector<int> index_here_;  // of each rank
  Breaker breaker_;
  std::unique_ptr<ShmGroup> group_;  // of this host, even for a single rank
  std::unique_ptr<TcpMesh> mesh_;    // if there are several hosts
  std::unique_ptr<MessageEngine> messages_;
  std::vector<Watched> watched_;
  Call call_;                        // being performed
  towline_collective_t taken_ = {};  // what call_ was made of; struct_size 0: call_ can't serve again
  Arrivals arrivals_;
  // For several hosts; made by the first operation.
  std::vector<size_t> host_of_;                     // of each rank
  size_t columns_ = 1;                              // the smallest number of ranks of any host
  bool even_ = true;                                // all hosts have the same number of ranks
  std::unique_ptr<TcpGroup> all_;                   // every rank
  std::unique_ptr<TcpGroup> column_;                // ranks with the same index on their hosts
  std::vector<std::unique_ptr<TcpGroup>> leaders_;  // by root + 1, made when needed
  std::vector<uint8_t> scratch_;
  EventFd wake_;
  std::atomic<bool> formed_{false};  // everything above exists
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint64_t> performing_{0};  // the operation's number + 1; 0: none
  uint64_t watched_number_ = 0;                      // the operation that the watcher saw last
  uint64_t watched_since_ns_ = 0;
  std::thread watcher_;
  std::shared_ptr<Agent> window_agent_;
};

}  // namespace towline::collectives
