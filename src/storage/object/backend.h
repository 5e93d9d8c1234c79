// One agent's instance of the object storage backend: its objects, its workers' queues, its clients.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/object/client.h"
#include "storage/object/collection.h"
#include "storage/object/connection.h"
#include "storage/object/job_queue.h"
#include "storage/object/joins.h"
#include "storage/object/object.h"
#include "storage/object/protocol.h"
#include "storage/object/reaper.h"
#include "storing/own_backend.h"

namespace towline::object {

class Backend : public storing::OwnBackend<Backend, Connection> {
 public:
  using Connection = object::Connection;
  static constexpr storing::Names kNames = {"object", "objects"};

  Backend(ServerKind kind, const plugin::Host& host);
  ~Backend();

  // ---- storage: any thread; these talk to the server
  int32_t storage_open(const towline_storage_args& args, towline_storage** storage,
                       towline_storage_attributes& attributes);
  int32_t storage_query(const char* uri, towline_storage_attributes& attributes);
  int32_t storage_list(const char* prefix, towline_storage_found_fn found, void* argument);
  int32_t storage_commit(towline_storage* storage);
  void storage_close(towline_storage* storage) noexcept;

  // ---- for connections, queues and tasks
  [[nodiscard]] Service& service() noexcept { return service_; }
  [[nodiscard]] JobQueue& queue(uint32_t worker) noexcept { return *queues_[worker]; }
  [[nodiscard]] Joins& joins() noexcept { return joins_; }
  [[nodiscard]] Readings& readings() noexcept { return readings_; }
  [[nodiscard]] Collections& collections() noexcept { return collections_; }
  [[nodiscard]] Reaper& reaper() noexcept { return *reaper_; }
  [[nodiscard]] size_t clients() const noexcept { return clients_.size(); }
  // As many as it takes to have a request for each of so many objects under way, as far as there are clients.
  [[nodiscard]] size_t clients_for(size_t objects) const noexcept;
  [[nodiscard]] Client& next_client() noexcept;
  [[nodiscard]] uint64_t id_of(const towline_storage* storage) const noexcept;
  [[nodiscard]] Object* find(uint64_t id) const;
  [[nodiscard]] std::string describe(uint32_t worker) const;

 private:
  // Threads start when the first object is asked for.
  void start_clients();
  // These wait for the server and throw plugin::Failure.
  [[nodiscard]] Version look(const ObjectName& name);
  [[nodiscard]] Version complete(const Object& object);
  void settle_commit(const Object& object, Version& version, const Answer& lost);
  void reap_old_uploads(const ObjectName& name);
  [[nodiscard]] std::string begin_upload(const Object& object);

  [[nodiscard]] const Protocol& protocol() const noexcept { return *service_.protocol; }

  Service service_;
  mutable std::mutex objects_mutex_;
  std::map<uint64_t, std::unique_ptr<Object>> objects_;
  uint64_t last_object_ = 0;
  Collections collections_;                        // outlives the jobs and the clients: they give parts back
  std::vector<std::unique_ptr<JobQueue>> queues_;  // of the workers
  Joins joins_;
  Readings readings_;
  std::once_flag started_;
  std::unique_ptr<Reaper>
      reaper_;  // ends after the clients: their threads come back to it until they are joined
  std::vector<std::unique_ptr<Client>> clients_;
};

// One backend for each kind of server, since each has settings, credentials and a scheme of its own.
class S3Backend final : public Backend {
 public:
  static constexpr const char* kStorageSchemes = "s3";
  explicit S3Backend(const plugin::Host& host) : Backend(ServerKind::kS3, host) {}
};
class AzureBackend final : public Backend {
 public:
  static constexpr const char* kStorageSchemes = "az";
  explicit AzureBackend(const plugin::Host& host) : Backend(ServerKind::kAzure, host) {}
};
class GcsBackend final : public Backend {
 public:
  static constexpr const char* kStorageSchemes = "gs";
  explicit GcsBackend(const plugin::Host& host) : Backend(ServerKind::kGcs, host) {}
};

}  // namespace towline::object
