// A cuFile library over plain files and host memory, which behaves as NVIDIA documents it: the driver is opened first,
// files are registered, a batch takes as many requests as it was set up for and reports their ends in any order, a few at
// a time, and may come short. fake_cufile_fail makes calls fail.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

struct Error {
  int code;
  int cuda;
};
struct Description {
  int type;
  union {
    int fd;
    void* handle;
  } of;
  const void* operations;
};
struct Request {
  int mode;
  struct {
    void* base;
    off_t file_offset;
    off_t base_offset;
    size_t bytes;
  } of;
  void* handle;
  int operation;
  void* cookie;
};
struct Event {
  void* cookie;
  int status;
  size_t bytes;
};

struct File {
  int fd;
};
struct Batch {
  size_t entries;
  std::vector<Request> submitted;
};

constexpr int kNotOpen = 5001;
constexpr int kInvalid = 5022;
constexpr int kNotRegistered = 5027;
constexpr int kMemoryRegistered = 5023;
constexpr int kMemoryNotRegistered = 5024;
constexpr int kFull = 5037;
constexpr size_t kAtATime = 3;

std::mutex mutex;
bool open_driver = false;
std::set<File*> files;
std::set<Batch*> batches;
std::set<const void*> buffers;
size_t wrong_deregistrations = 0;
std::map<std::string, int> failures;  // calls that are to fail, by name: how many
std::atomic<size_t> most_bytes{SIZE_MAX};
bool meet = false;  // guarded by mutex, as the callers are
std::set<std::thread::id> callers;
std::condition_variable callers_changed;

void meet_another() {
  std::unique_lock lock(mutex);
  if (!meet) return;
  callers.insert(std::this_thread::get_id());
  callers_changed.notify_all();
  callers_changed.wait_for(lock, std::chrono::seconds(10), [] { return callers.size() > 1; });
}
std::atomic<unsigned> batches_submitted{0};
std::atomic<bool> held{false};

bool fails(const char* what) {
  const auto found = failures.find(what);
  if (found == failures.end() || found->second == 0) return false;
  --found->second;
  return true;
}

ssize_t move(void* handle, void* base, size_t bytes, off_t offset, bool write) {
  {
    const std::lock_guard lock(mutex);
    if (!open_driver) return -kNotOpen;
    if (files.count(static_cast<File*>(handle)) == 0) return -kNotRegistered;
    if (fails(write ? "write" : "read")) {
      errno = EIO;
      return -1;
    }
  }
  held.wait(true);
  const int fd = static_cast<File*>(handle)->fd;
  bytes = std::min(bytes, most_bytes.load());
  return write ? ::pwrite(fd, base, bytes, offset) : ::pread(fd, base, bytes, offset);
}

}  // namespace

// `what`: driver_open, handle, buffer, batch_set_up, batch_submit, batch_status, read, write.
FAKE_API void fake_cufile_fail(const char* what, int times) {
  const std::lock_guard lock(mutex);
  failures[what] = times;
}
// No call moves more at once.
FAKE_API void fake_cufile_limit(size_t bytes) { most_bytes = bytes; }
// Nothing moves meanwhile.
FAKE_API void fake_cufile_hold(bool hold) {
  held = hold;
  held.notify_all();
}
// From now on reads and writes by their own calls wait until another thread makes one, and those threads are counted anew.
FAKE_API void fake_cufile_meet(bool now) {
  const std::lock_guard lock(mutex);
  meet = now;
  callers.clear();
}
FAKE_API size_t fake_cufile_callers() {
  const std::lock_guard lock(mutex);
  return callers.size();
}
FAKE_API unsigned fake_cufile_batches() { return batches_submitted; }
FAKE_API size_t fake_cufile_open_files() {
  const std::lock_guard lock(mutex);
  return files.size();
}

FAKE_API size_t fake_cufile_buffers() {
  const std::lock_guard lock(mutex);
  return buffers.size();
}
// Of memory that was not registered.
FAKE_API size_t fake_cufile_wrong_deregistrations() {
  const std::lock_guard lock(mutex);
  return wrong_deregistrations;
}

FAKE_API Error cuFileDriverOpen() {
  const std::lock_guard lock(mutex);
  if (fails("driver_open")) return {5033, 0};
  open_driver = true;
  return {0, 0};
}
FAKE_API Error cuFileHandleRegister(void** handle, Description* description) {
  const std::lock_guard lock(mutex);
  if (!open_driver) return {kNotOpen, 0};
  if (description->type != 1 || description->of.fd < 0) return {kInvalid, 0};
  if (fails("handle")) return {5018, 0};
  auto* file = new File{description->of.fd};
  files.insert(file);
  *handle = file;
  return {0, 0};
}
FAKE_API void cuFileHandleDeregister(void* handle) {
  const std::lock_guard lock(mutex);
  auto* file = static_cast<File*>(handle);
  if (files.erase(file) != 0) delete file;
}
FAKE_API Error cuFileBufRegister(const void* base, size_t, int) {
  const std::lock_guard lock(mutex);
  if (!open_driver) return {kNotOpen, 0};
  if (fails("buffer")) return {kInvalid, 0};
  return {buffers.insert(base).second ? 0 : kMemoryRegistered, 0};
}
FAKE_API Error cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(mutex);
  if (buffers.erase(base) != 0) return {0, 0};
  ++wrong_deregistrations;
  return {kMemoryNotRegistered, 0};
}
FAKE_API ssize_t cuFileRead(void* handle, void* base, size_t bytes, off_t offset, off_t base_offset) {
  meet_another();
  return move(handle, static_cast<char*>(base) + base_offset, bytes, offset, false);
}
FAKE_API ssize_t cuFileWrite(void* handle, const void* base, size_t bytes, off_t offset, off_t base_offset) {
  meet_another();
  return move(handle, const_cast<char*>(static_cast<const char*>(base)) + base_offset, bytes, offset, true);
}

FAKE_API Error cuFileBatchIOSetUp(void** batch, unsigned entries) {
  const std::lock_guard lock(mutex);
  if (!open_driver) return {kNotOpen, 0};
  if (entries == 0 || entries > 128) return {kInvalid, 0};
  if (fails("batch_set_up")) return {5049, 0};
  auto* made = new Batch{entries, {}};
  batches.insert(made);
  *batch = made;
  return {0, 0};
}
FAKE_API Error cuFileBatchIOSubmit(void* handle, unsigned count, Request* requests, unsigned) {
  const std::lock_guard lock(mutex);
  auto* batch = static_cast<Batch*>(handle);
  if (batches.count(batch) == 0) return {kInvalid, 0};
  if (batch->submitted.size() + count > batch->entries) return {kFull, 0};
  if (fails("batch_submit")) return {5049, 0};
  ++batches_submitted;
  for (unsigned i = 0; i < count; ++i) {
    if (requests[i].mode != 1) return {kInvalid, 0};
    batch->submitted.push_back(requests[i]);
  }
  return {0, 0};
}
// The last first.
FAKE_API Error cuFileBatchIOGetStatus(void* handle, unsigned least, unsigned* count, Event* events,
                                      timespec*) {
  std::vector<Request> ended;
  {
    const std::lock_guard lock(mutex);
    auto* batch = static_cast<Batch*>(handle);
    if (batches.count(batch) == 0 || least > batch->submitted.size()) return {kInvalid, 0};
    if (fails("batch_status")) return {5041, 0};
    const size_t some =
        std::min({std::max<size_t>(kAtATime, least), size_t{*count}, batch->submitted.size()});
    ended.assign(batch->submitted.rbegin(), batch->submitted.rbegin() + static_cast<std::ptrdiff_t>(some));
    batch->submitted.resize(batch->submitted.size() - some);
  }
  for (size_t i = 0; i < ended.size(); ++i) {
    const Request& request = ended[i];
    const ssize_t moved = move(request.handle, static_cast<char*>(request.of.base) + request.of.base_offset,
                               request.of.bytes, request.of.file_offset, request.operation == 1);
    events[i] = {request.cookie, moved < 0 ? 0x40 : 0x10, static_cast<size_t>(moved == -1 ? -errno : moved)};
  }
  *count = static_cast<unsigned>(ended.size());
  return {0, 0};
}
FAKE_API Error cuFileBatchIOCancel(void* handle) {
  const std::lock_guard lock(mutex);
  auto* batch = static_cast<Batch*>(handle);
  if (batches.count(batch) == 0) return {kInvalid, 0};
  batch->submitted.clear();
  return {0, 0};
}
FAKE_API void cuFileBatchIODestroy(void* handle) {
  const std::lock_guard lock(mutex);
  auto* batch = static_cast<Batch*>(handle);
  if (batches.erase(batch) != 0) delete batch;
}
