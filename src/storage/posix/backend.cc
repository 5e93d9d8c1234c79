#include "storage/posix/backend.h"

#include <algorithm>
#include <cstring>

#include "towline/towline.h"

namespace towline::posix {

namespace {

File* file_of(towline_storage* storage) noexcept { return reinterpret_cast<File*>(storage); }

}  // namespace

Backend::Backend(const plugin::Host& host)
    : BackendBase(host),
      settings_(Settings::read(host)),
      workers_(host.worker_count()),
      pool_(settings_.threads, std::min(settings_.handed, settings_.threads), settings_.spin_ns) {
  for (uint32_t i = 0; i < workers_.size(); ++i)
    workers_[i].queue = std::make_unique<JobQueue>(this->host(), i, settings_, pool_);
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

// ---- regions

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void* token,
                     size_t* token_bytes) {
  *token_bytes = 0;
  if (args.region.kind != TOWLINE_DRAM) {
    if (args.storage == nullptr)
      return host().refuse(Status::kUnsupported, "posix: it did not open this region's file");
    const uint64_t id = file_of(args.storage)->id();
    std::memcpy(token, &id, sizeof id);
    *token_bytes = sizeof id;
  }
  *registration = reinterpret_cast<towline_registration*>(this);  // nothing to keep
  return TOWLINE_OK;
}

// ---- connections

bool Backend::is_us(const towline_identity& peer) const noexcept {
  const towline_identity& self = host().self();
  return std::equal(std::begin(peer.incarnation), std::end(peer.incarnation), std::begin(self.incarnation));
}

int32_t Backend::address(void* address, size_t* bytes) {
  constexpr char kSelf[] = "self";
  if (*bytes < sizeof kSelf) return host().refuse(Status::kNoSpace, "posix: no room for the address");
  std::memcpy(address, kSelf, sizeof kSelf);
  *bytes = sizeof kSelf;
  return TOWLINE_OK;
}

int32_t Backend::probe(const towline_identity& peer, const void*, size_t) {
  if (is_us(peer)) return TOWLINE_OK;
  return host().refuse(Status::kUnreachable, "posix: files are reached by the agent that registered them");
}

int32_t Backend::connect(uint32_t worker, const towline_identity& identity, const void*, size_t, uint64_t,
                         void* peer, Connection** connection) {
  if (!is_us(identity))
    return host().refuse(Status::kUnreachable, "posix: files are reached by the agent that registered them");
  auto made = std::make_unique<Connection>(*this, worker, peer);
  workers_[worker].connections.push_back(made.get());
  *connection = made.release();
  host().connection_event(peer, TOWLINE_CONNECTION_UP, Status::kOk, "");
  return TOWLINE_OK;
}

void Backend::release(Connection* connection) noexcept {
  Worker& worker = workers_[connection->worker()];
  std::replace(worker.connections.begin(), worker.connections.end(), connection,
               static_cast<Connection*>(nullptr));
  worker.dead.push_back(connection);
  if (!worker.in_pass) bury(worker);
}

void Backend::bury(Worker& worker) noexcept {
  for (Connection* connection : worker.dead) delete connection;
  worker.dead.clear();
  std::erase(worker.connections, nullptr);
}

// ---- progress

uint32_t Backend::progress(uint32_t index, uint64_t) noexcept {
  Worker& worker = workers_[index];
  if (worker.in_pass) return 0;
  worker.in_pass = true;
  uint32_t done = worker.queue->progress();
  for (size_t i = 0; i < worker.connections.size(); ++i) {
    if (worker.connections[i] != nullptr && worker.connections[i]->has_messages())
      done += worker.connections[i]->deliver();
  }
  worker.in_pass = false;
  if (!worker.dead.empty()) bury(worker);
  return done;
}

bool Backend::arm(uint32_t index) noexcept {
  const Worker& worker = workers_[index];
  return worker.queue->has_work() ||
         std::any_of(worker.connections.begin(), worker.connections.end(), [](const Connection* connection) {
           return connection != nullptr && connection->has_messages();
         });
}

}  // namespace towline::posix
