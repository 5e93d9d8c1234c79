#include "storage/posix/backend.h"

#include <algorithm>

#include "towline/towline.h"

namespace towline::posix {

namespace {

File* file_of(towline_storage* storage) noexcept { return reinterpret_cast<File*>(storage); }

}  // namespace

Backend::Backend(const plugin::Host& host)
    : OwnBackend(host),
      settings_(Settings::read(host)),
      pool_(settings_.threads, std::min(settings_.handed, settings_.threads), settings_.spin_ns) {
  for (uint32_t i = 0; i < host.worker_count(); ++i)
    queues_.push_back(std::make_unique<JobQueue>(this->host(), i, settings_, pool_));
}

Backend::~Backend() = default;

// ---- storage

int32_t Backend::storage_open(const towline_storage_args& args, towline_storage** storage,
                              towline_storage_attributes& attributes) {
  auto file = std::make_unique<File>(args);
  attributes = file->attributes();
  *storage = reinterpret_cast<towline_storage*>(file.get());
  std::lock_guard lock(files_mutex_);
  const uint64_t id = file->id();
  files_.emplace(id, std::move(file));
  return TOWLINE_OK;
}

int32_t Backend::storage_query(const char* uri, towline_storage_attributes& attributes) {
  attributes = File::query(uri);
  return TOWLINE_OK;
}

int32_t Backend::storage_commit(towline_storage* storage) {
  file_of(storage)->commit();
  return TOWLINE_OK;
}

void Backend::storage_close(towline_storage* storage) noexcept {
  std::unique_ptr<File> file;  // closed without the lock: that may take a while
  std::lock_guard lock(files_mutex_);
  const auto found = files_.find(file_of(storage)->id());
  if (found == files_.end()) return;
  file = std::move(found->second);
  files_.erase(found);
}

const File* Backend::find(uint64_t id) const {
  std::lock_guard lock(files_mutex_);
  const auto found = files_.find(id);
  return found == files_.end() ? nullptr : found->second.get();
}

uint64_t Backend::id_of(const towline_storage* storage) const noexcept {
  return reinterpret_cast<const File*>(storage)->id();
}

}  // namespace towline::posix
