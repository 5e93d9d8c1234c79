// One agent's instance of the posix storage backend: its open files, its workers' queues, its threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/posix/connection.h"
#include "storage/posix/file.h"
#include "storage/posix/job_queue.h"
#include "storage/posix/pool.h"
#include "storage/posix/settings.h"
#include "towline/plugin/backend.hpp"

namespace towline::posix {

class Backend : public plugin::BackendBase {
 public:
  using Connection = posix::Connection;
  static constexpr const char* kStorageSchemes = "file";

  explicit Backend(const plugin::Host& host);
  ~Backend();

  // ---- storage: any thread
  int32_t storage_open(const towline_storage_args& args, towline_storage** storage,
                       towline_storage_attributes& attributes);
  int32_t storage_query(const char* uri, towline_storage_attributes& attributes);
  int32_t storage_commit(towline_storage* storage);
  void storage_close(towline_storage* storage) noexcept;

  // ---- memory and connections: worker 0
  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration*) noexcept {}
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* peer, Connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept;
  bool arm(uint32_t worker) noexcept;
  void disarm(uint32_t) noexcept {}

  // ---- for connections
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] JobQueue& queue(uint32_t worker) noexcept { return *workers_[worker].queue; }
  [[nodiscard]] const File* find(uint64_t id) const;
  // The connection's last word; it is deleted once nothing of the worker's pass can touch it.
  void release(Connection* connection) noexcept;

 private:
  struct Worker {
    std::unique_ptr<JobQueue> queue;
    std::vector<Connection*> connections;  // null: released during a pass
    std::vector<Connection*> dead;
    bool in_pass = false;
  };

  void bury(Worker& worker) noexcept;
  [[nodiscard]] bool is_us(const towline_identity& peer) const noexcept;

  const Settings settings_;
  mutable std::mutex files_mutex_;
  std::map<uint64_t, std::unique_ptr<File>> files_;
  std::vector<Worker> workers_;
  Pool pool_;  // goes first: its threads report to the queues
};

}  // namespace towline::posix
