// One agent's instance of the shm transport: its listening socket, its regions, and its connections by
// worker.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/containers/pass_list.h"
#include "base/os/unique_fd.h"
#include "base/sync/inbox.h"
#include "memory/shared_memory.h"
#include "towline/plugin/backend.hpp"
#include "transports/shm/connection.h"
#include "transports/shm/mapping_cache.h"
#include "transports/shm/settings.h"

namespace towline::shm {

class Backend : public plugin::BackendBase {
 public:
  using Connection = shm::Connection;

  explicit Backend(const plugin::Host& host);
  ~Backend();

  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration* registration) noexcept;
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* peer, Connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept;
  bool arm(uint32_t worker) noexcept;
  void disarm(uint32_t worker) noexcept;

  // The listener's handler threw.
  void broken(const char* why) noexcept;

  // For connections.

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] MappingCache& mappings() noexcept { return mappings_; }
  // The copy of our incarnation that peers read when they try process_vm.
  [[nodiscard]] const uint64_t* cookie() const noexcept { return cookie_; }
  // Throws plugin::Failure unless the process at the other end of the socket may access the memory shared
  // here.
  void check_user(int socket) const;
  // A registered region's file; any thread. The answer lacks only its request number. `fd` is to be sent when
  // the answer is kOk: it stays valid while `keep` lives.
  DescriptorAnswer find_descriptor(uint64_t key, int* fd, std::shared_ptr<const void>* keep);

  // Around everything on a worker that may call the host back: connections that are disconnected meanwhile
  // are deleted when the outermost one ends.
  [[nodiscard]] PassList<Connection>::Pass scope(uint32_t worker) noexcept {
    return PassList<Connection>::Pass(workers_[worker].connections);
  }
  // Called by disconnect(), which is the connection's last word.
  void release(Connection* connection) noexcept {
    workers_[connection->worker()].connections.release(connection);
  }

 private:
  // A client that has connected and not sent its hello yet.
  struct Visitor {
    Backend* backend;
    UniqueFd socket;
    uint64_t since_ns;

    void socket_ready(uint32_t) { backend->hear(*this); }
    void broken(const char* why) noexcept { backend->turn_away(*this, why); }
  };
  struct Region {
    towline_region_args args;
    SharedRange range;  // its file, once a peer has asked; regions of one mapping share it
  };
  struct Worker {
    PassList<Connection> connections;
    Inbox<Greeted> inbox;  // greeted by worker 0, to be accepted here
  };

  [[nodiscard]] bool peers_may_write(uint64_t address, uint64_t bytes) const noexcept;
  [[nodiscard]] bool file_has_own_memory(const towline_region_ref& given,
                                         const SharedRange& range) const noexcept;
  [[nodiscard]] std::string why_not_given(const towline_region_ref& region, const SharedRange& range);
  void accept_visitors(uint32_t events);
  void hear(Visitor& visitor);
  void dismiss(Visitor& visitor) noexcept;
  void turn_away(Visitor& visitor, const char* why) noexcept;
  void dismiss_slow_visitors(uint64_t now_ns) noexcept;
  Status check_hello(const Visitor& visitor, const Packet& packet, std::optional<Hello>& hello,
                     std::string& why);
  uint32_t take_mail(uint32_t worker) noexcept;
  void welcome(uint32_t worker, Greeted greeted) noexcept;

  const Settings settings_;
  const uint32_t worker_count_;
  alignas(16) const uint64_t cookie_[2];
  const int64_t owner_pid_;
  Address listening_on_;
  UniqueFd listener_;
  UniqueFd spare_;  // given up for a moment when descriptors have run out, to turn a visitor away
  std::vector<std::unique_ptr<Visitor>> visitors_;
  std::unique_ptr<Worker[]> workers_;
  MappingCache mappings_;

  std::mutex regions_mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Region>> regions_;  // by key
};

}  // namespace towline::shm
