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
#include "storing/own_backend.h"

namespace towline::posix {

class Backend : public storing::OwnBackend<Backend, Connection> {
 public:
  using Connection = posix::Connection;
  static constexpr storing::Names kNames = {"posix", "files"};
  static constexpr const char* kStorageSchemes = "file";

  explicit Backend(const plugin::Host& host);
  ~Backend();

  // ---- storage: any thread
  int32_t storage_open(const towline_storage_args& args, towline_storage** storage,
                       towline_storage_attributes& attributes);
  int32_t storage_query(const char* uri, towline_storage_attributes& attributes);
  int32_t storage_commit(towline_storage* storage);
  void storage_close(towline_storage* storage) noexcept;

  // ---- for connections
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] JobQueue& queue(uint32_t worker) noexcept { return *queues_[worker]; }
  [[nodiscard]] uint64_t id_of(const towline_storage* storage) const noexcept;
  [[nodiscard]] const File* find(uint64_t id) const;

 private:
  const Settings settings_;
  mutable std::mutex files_mutex_;
  std::map<uint64_t, std::unique_ptr<File>> files_;
  std::vector<std::unique_ptr<JobQueue>> queues_;  // of the workers
  Pool pool_;                                      // goes first: its threads report to the queues
};

}  // namespace towline::posix
