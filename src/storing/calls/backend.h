// A storage backend that moves files by the calls of a vendor's library.
//
//   class MyLibrary final : public calls::Library {
//    public:
//     static constexpr storing::Names kNames = {"mine", "files"};
//     static constexpr const char* kScheme = "mine";
//     explicit MyLibrary(const plugin::Host& host);         // throws plugin::Failure
//     const calls::PoolSettings& pool() const noexcept;
//     ...
//   };
//   describe<calls::Backend<MyLibrary>>({...}, ...)
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storing/calls/pool.h"
#include "storing/own_backend.h"

namespace towline::calls {

// A file that the agent registered.
struct Stored {
  PlainFile file;
  void* handle = nullptr;
};

template <class Mine>
class Backend;

template <class Mine>
class FileConnection final : public storing::OwnConnection {
 public:
  FileConnection(Backend<Mine>& backend, uint32_t worker, void* peer)
      : OwnConnection(backend.host(), Mine::kNames, worker, peer), backend_(backend) {}

  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]) {
    if (args.region.kind != TOWLINE_MEMORY_FILE)
      return host().refuse(Status::kUnsupported,
                           std::string(Mine::kNames.backend) + ": only files are reached");
    uint64_t id = 0;
    if (const int32_t status = read_token(token, token_bytes, id); status != TOWLINE_OK) return status;
    Stored* stored = backend_.find(id);
    if (stored == nullptr)
      return host().refuse(Status::kStale, std::string(Mine::kNames.backend) + ": the file has been closed");
    *import = reinterpret_cast<towline_import*>(stored);
    std::snprintf(how, 64, "%s", stored->file.direct() ? "direct I/O" : "page cache");
    return TOWLINE_OK;
  }

  int32_t prepare(const towline_prepare_args& args, towline_prepared** out) {
    const towline_plan& plan = *args.plan;
    for (uint64_t i = 0; i < plan.local->region_count; ++i) {
      if ((backend_.library().kinds() >> plan.local->regions[i].kind & 1) == 0)
        return host().refuse(Status::kUnsupported,
                             fmt::format("{}: the other list is of a kind of memory that it does not move",
                                         Mine::kNames.backend));
    }
    auto prepared = std::make_unique<Prepared>();
    prepared->connection = reinterpret_cast<towline_connection*>(this);
    prepared->plan = &plan;
    prepared->queue = &backend_.queue(worker());
    prepared->write = args.op == TOWLINE_WRITE;
    for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
      const auto* stored = reinterpret_cast<const Stored*>(args.remote[i]);
      if (prepared->write && stored->file.committed())
        return host().refuse(Status::kPermissionDenied,
                             fmt::format("{}: {} has been committed: register it anew", Mine::kNames.backend,
                                         stored->file.path()));
      prepared->syncs = prepared->syncs || stored->file.syncs();
      prepared->files.push_back(&stored->file);
      prepared->handles.push_back(stored->handle);
    }
    *out = prepared.release();
    return TOWLINE_OK;
  }
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<Prepared*>(prepared); }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto& mine = *static_cast<Prepared*>(prepared);
    return mine.queue->submit(mine, args, reinterpret_cast<FileConnection*>(mine.connection));
  }
  void cancel(uint64_t cookie) noexcept { backend_.queue(worker()).cancel(cookie); }
  void disconnect() noexcept {
    backend_.queue(worker()).close(this);
    backend_.release(this);
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format(R"({{"storage": "{}", "jobs": {}}})", Mine::kNames.backend,
                       backend_.queue(worker()).jobs());
  }

 private:
  Backend<Mine>& backend_;
};

template <class Mine>
class Backend final : public storing::OwnBackend<Backend<Mine>, FileConnection<Mine>> {
  using Base = storing::OwnBackend<Backend<Mine>, FileConnection<Mine>>;

 public:
  using Connection = FileConnection<Mine>;
  static constexpr storing::Names kNames = Mine::kNames;
  static constexpr const char* kStorageSchemes = Mine::kScheme;

  explicit Backend(const plugin::Host& host)
      : Base(host), library_(this->host()), pool_(library_, library_.pool()) {
    for (uint32_t i = 0; i < host.worker_count(); ++i)
      queues_.push_back(std::make_unique<JobQueue>(this->host(), i, pool_));
  }

  // ---- memory: GPU memory is told to the library, and the host's if the library wants so
  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes) {
    const bool skips_host = args.region.kind == TOWLINE_MEMORY_DRAM && !library_.registers_host_memory();
    const bool plain =
        skips_host || args.storage != nullptr || (library_.kinds() >> args.region.kind & 1) == 0;
    if (plain) return Base::add(args, registration, token, token_bytes);
    auto kept = std::make_unique<towline_region_ref>(args.region);
    *token_bytes = 0;
    *registration =
        library_.add_memory(*kept) ? reinterpret_cast<towline_registration*>(kept.release()) : nothing_kept();
    return TOWLINE_OK;
  }
  void remove(towline_registration* registration) noexcept {
    if (registration == nothing_kept()) return;
    const std::unique_ptr<towline_region_ref> kept(reinterpret_cast<towline_region_ref*>(registration));
    library_.remove_memory(*kept);
  }

  // ---- storage: any thread
  int32_t storage_open(const towline_storage_args& args, towline_storage** storage,
                       towline_storage_attributes& attributes) {
    pool_.start();
    std::unique_ptr<Stored> stored(new Stored{.file = {Mine::kScheme, args}});
    stored->handle = library_.attach(stored->file);
    attributes = stored->file.attributes();
    *storage = reinterpret_cast<towline_storage*>(stored.get());
    const std::lock_guard lock(mutex_);
    const uint64_t id = stored->file.id();
    files_.emplace(id, std::move(stored));
    return TOWLINE_OK;
  }
  int32_t storage_query(const char* uri, towline_storage_attributes& attributes) {
    attributes = PlainFile::query(Mine::kScheme, uri);
    return TOWLINE_OK;
  }
  int32_t storage_commit(towline_storage* storage) {
    reinterpret_cast<Stored*>(storage)->file.commit();
    return TOWLINE_OK;
  }
  void storage_close(towline_storage* storage) noexcept {
    std::unique_ptr<Stored> stored;
    {
      const std::lock_guard lock(mutex_);
      const auto found = files_.find(id_of(storage));
      if (found == files_.end()) return;
      stored = std::move(found->second);
      files_.erase(found);
    }
    library_.detach(stored->file, stored->handle);
  }

  // ---- for connections
  [[nodiscard]] uint64_t id_of(const towline_storage* storage) const noexcept {
    return reinterpret_cast<const Stored*>(storage)->file.id();
  }
  [[nodiscard]] Stored* find(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(id);
    return found == files_.end() ? nullptr : found->second.get();
  }
  [[nodiscard]] JobQueue& queue(uint32_t worker) noexcept { return *queues_[worker]; }
  [[nodiscard]] Library& library() noexcept { return library_; }

 private:
  // As Base::add() registers memory.
  [[nodiscard]] towline_registration* nothing_kept() noexcept {
    return reinterpret_cast<towline_registration*>(static_cast<Base*>(this));
  }

  Mine library_;
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Stored>> files_;
  std::vector<std::unique_ptr<JobQueue>> queues_;
  Pool pool_;  // goes first: its threads report to the queues
};

}  // namespace towline::calls
