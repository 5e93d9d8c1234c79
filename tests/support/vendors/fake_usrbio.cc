// A 3FS client's usrbio library over plain files, which behaves as its header documents it: memory that is moved lies in
// memory that it gave, files are registered, a ring takes a limited number of requests, and their ends come a few at a
// time and in any order. fake_usrbio_fail makes calls fail.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

struct Iov {
  uint8_t* base;
  void* handle;
  char id[16];
  char mount_point[256];
  size_t size;
  size_t block_size;
  int numa;
};
struct Ior {
  Iov iov;
  void* handle;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  uint64_t flags;
};
struct Completion {
  int32_t index;
  int32_t reserved;
  int64_t result;
  const void* userdata;
};
struct Request {
  int index;
  bool read;
  void* memory;
  int fd;
  size_t offset;
  uint64_t bytes;
  const void* userdata;
};
struct Ring {
  size_t entries;
  bool for_read;
  size_t submitted = 0;  // of `requests`, from the first
  std::vector<Request> requests;
};

constexpr size_t kAtATime = 4;

std::mutex mutex;
std::set<int> registered;
std::map<std::string, int> failures;
std::atomic<uint64_t> most_bytes{UINT64_MAX};
std::atomic<bool> held{false};

bool fails(const char* what) {
  const auto found = failures.find(what);
  if (found == failures.end() || found->second == 0) return false;
  --found->second;
  return true;
}

Ring* ring_of(const Ior* ior) { return static_cast<Ring*>(ior->handle); }

}  // namespace

// `what`: iov, ior, register, prepare, submit, wait, io.
FAKE_API void fake_usrbio_fail(const char* what, int times) {
  const std::lock_guard lock(mutex);
  failures[what] = times;
}
FAKE_API void fake_usrbio_limit(uint64_t bytes) { most_bytes = bytes; }

// Nothing moves meanwhile.
FAKE_API void fake_usrbio_hold(bool hold) {
  held = hold;
  held.notify_all();
}

FAKE_API int hf3fs_iovcreate(Iov* iov, const char* mount_point, size_t size, size_t block_size, int numa) {
  const std::lock_guard lock(mutex);
  if (fails("iov")) return -ENOMEM;
  *iov = {};
  iov->base = static_cast<uint8_t*>(std::malloc(size));
  iov->size = size;
  iov->block_size = block_size;
  iov->numa = numa;
  std::strncpy(iov->mount_point, mount_point, sizeof iov->mount_point - 1);
  return iov->base == nullptr ? -ENOMEM : 0;
}
FAKE_API void hf3fs_iovdestroy(Iov* iov) {
  std::free(iov->base);
  iov->base = nullptr;
}
FAKE_API int hf3fs_iorcreate(Ior* ior, const char* mount_point, int entries, bool for_read, int io_depth,
                             int) {
  const std::lock_guard lock(mutex);
  if (fails("ior")) return -ENODEV;
  *ior = {};
  ior->for_read = for_read;
  ior->io_depth = io_depth;
  std::strncpy(ior->mount_point, mount_point, sizeof ior->mount_point - 1);
  ior->handle = new Ring{static_cast<size_t>(entries), for_read, 0, {}};
  return 0;
}
FAKE_API void hf3fs_iordestroy(Ior* ior) {
  delete ring_of(ior);
  ior->handle = nullptr;
}
FAKE_API int hf3fs_reg_fd(int fd, uint64_t) {
  const std::lock_guard lock(mutex);
  if (fails("register")) return EINVAL;  // not a 3FS file
  if (!registered.insert(fd).second) return EINVAL;
  return -fd;
}
FAKE_API void hf3fs_dereg_fd(int fd) {
  const std::lock_guard lock(mutex);
  registered.erase(fd);
}
FAKE_API int hf3fs_prep_io(const Ior* ior, const Iov* iov, bool read, void* memory, int fd, size_t offset,
                           uint64_t bytes, const void* userdata) {
  const std::lock_guard lock(mutex);
  Ring& ring = *ring_of(ior);
  const auto* begin = static_cast<const uint8_t*>(memory);
  if (fails("prepare")) return -EAGAIN;
  if (read != ring.for_read || begin < iov->base || begin + bytes > iov->base + iov->size) return -EINVAL;
  if (registered.count(fd) == 0) return -EBADF;
  if (ring.requests.size() == ring.entries) return -EAGAIN;
  const int index = static_cast<int>(ring.requests.size());
  ring.requests.push_back({index, read, memory, fd, offset, bytes, userdata});
  return index;
}
FAKE_API int hf3fs_submit_ios(const Ior* ior) {
  const std::lock_guard lock(mutex);
  if (fails("submit")) return -EIO;
  ring_of(ior)->submitted = ring_of(ior)->requests.size();
  return 0;
}
// The last first.
FAKE_API int hf3fs_wait_for_ios(const Ior* ior, Completion* completions, int count, int least,
                                const timespec*) {
  Ring& ring = *ring_of(ior);
  bool broken = false;
  held.wait(true);
  {
    const std::lock_guard lock(mutex);
    if (fails("wait")) return -EIO;
    broken = fails("io");
  }
  if (static_cast<size_t>(least) > ring.submitted) return -EINVAL;
  const size_t some = std::min({kAtATime, static_cast<size_t>(count), ring.submitted});
  for (size_t i = 0; i < some; ++i) {
    const Request request = ring.requests.back();
    ring.requests.pop_back();
    --ring.submitted;
    const uint64_t bytes = std::min<uint64_t>(request.bytes, most_bytes);
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t moved = broken         ? -1
                          : request.read ? ::pread(request.fd, request.memory, bytes, offset)
                                         : ::pwrite(request.fd, request.memory, bytes, offset);
    completions[i] = {request.index, 0, broken ? -EIO : moved < 0 ? -errno : moved, request.userdata};
  }
  return static_cast<int>(some);
}
