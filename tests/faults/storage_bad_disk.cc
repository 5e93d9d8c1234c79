#include "storage_bad_disk.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#ifdef TOWLINE_HAVE_FUSE
#define FUSE_USE_VERSION 32
#include <fuse.h>
#endif

namespace towline::faults {

#ifdef TOWLINE_HAVE_FUSE

namespace {

constexpr long kFuseMagic = 0x65735546;

struct Served {
  BadDisk::Faults* faults;
  char* bytes;
  uint64_t size;
};

Served& served() { return *static_cast<Served*>(fuse_get_context()->private_data); }

bool overlap(uint64_t begin, uint64_t end, off_t offset, size_t size) {
  const auto at = static_cast<uint64_t>(offset);
  return at < end && begin < at + size;
}

int get_attributes(const char* path, struct stat* found, fuse_file_info*) {
  *found = {};
  if (std::strcmp(path, "/") == 0) {
    found->st_mode = S_IFDIR | 0755;
    found->st_nlink = 2;
    return 0;
  }
  if (std::strcmp(path, "/file") != 0) return -ENOENT;
  found->st_mode = S_IFREG | 0666;
  found->st_nlink = 1;
  found->st_size = static_cast<off_t>(served().size);
  return 0;
}

int open_file(const char* path, fuse_file_info*) { return std::strcmp(path, "/file") == 0 ? 0 : -ENOENT; }

int read_file(const char*, char* buffer, size_t size, off_t offset, fuse_file_info*) {
  const Served& disk = served();
  BadDisk::Faults& faults = *disk.faults;
  if (faults.reads_hang != 0) {
    ++faults.hanging;
    while (faults.reads_hang != 0) std::this_thread::yield();
  }
  if (overlap(faults.read_begin, faults.read_end, offset, size)) return -EIO;
  const auto at = static_cast<uint64_t>(offset);
  if (at >= disk.size) return 0;
  const size_t count = std::min<uint64_t>(size, disk.size - at);
  std::memcpy(buffer, disk.bytes + at, count);
  return static_cast<int>(count);
}

int write_file(const char*, const char* buffer, size_t size, off_t offset, fuse_file_info*) {
  const Served& disk = served();
  BadDisk::Faults& faults = *disk.faults;
  if (faults.writes_hang != 0 && overlap(faults.writes_hang_begin, faults.writes_hang_end, offset, size)) {
    ++faults.hanging;
    while (faults.writes_hang != 0) std::this_thread::yield();
  }
  if (overlap(faults.write_begin, faults.write_end, offset, size)) return -EIO;
  const auto at = static_cast<uint64_t>(offset);
  if (at >= disk.size) return -ENOSPC;
  const size_t count = std::min<uint64_t>(size, disk.size - at);
  std::memcpy(disk.bytes + at, buffer, count);
  return static_cast<int>(count);
}

int sync_file(const char*, int, fuse_file_info*) { return served().faults->sync_fails != 0 ? -EIO : 0; }

// The child's whole life.
[[noreturn]] void serve(const std::string& folder, Served disk) {
  fuse_operations operations = {};
  operations.getattr = get_attributes;
  operations.open = open_file;
  operations.read = read_file;
  operations.write = write_file;
  operations.fsync = sync_file;
  std::string program = "bad_disk";
  char* arguments[] = {program.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  fuse* session = fuse_new(&args, &operations, sizeof operations, &disk);
  if (session == nullptr || fuse_mount(session, folder.c_str()) != 0) ::_exit(1);
  fuse_loop_config config = {};
  config.max_idle_threads = 8;
  ::_exit(fuse_loop_mt(session, &config) == 0 ? 0 : 2);
}

}  // namespace

BadDisk::BadDisk(const std::string& folder, uint64_t file_bytes) : folder_(folder) {
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) {
    why_not_ = std::string("/dev/fuse: ") + std::strerror(errno);
    return;
  }
  ::close(device);
  void* shared =
      ::mmap(nullptr, sizeof(Faults) + file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("no shared memory");
  faults_ = new (shared) Faults;
  std::fflush(nullptr);
  child_ = ::fork();
  if (child_ == 0) serve(folder_, {faults_, static_cast<char*>(shared) + sizeof(Faults), file_bytes});
  // It is there once the folder is FUSE's, unless the child gave up.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    struct statfs found = {};
    if (::statfs(folder_.c_str(), &found) == 0 && found.f_type == kFuseMagic) return;
    if (::waitpid(child_, nullptr, WNOHANG) == child_) {
      child_ = -1;
      why_not_ = "mounting FUSE is not allowed";
      return;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      why_not_ = "the FUSE server does not answer";
      return;
    }
    std::this_thread::yield();
  }
}

BadDisk::~BadDisk() {
  if (faults_ != nullptr) faults_->reads_hang = faults_->writes_hang = 0;
  if (child_ <= 0) return;
  (void)::umount2(folder_.c_str(), MNT_DETACH);
  (void)::kill(child_, SIGKILL);
  (void)::waitpid(child_, nullptr, 0);
}

#else

BadDisk::BadDisk(const std::string&, uint64_t) : why_not_("the tests were built without libfuse3") {}
BadDisk::~BadDisk() = default;

#endif

}  // namespace towline::faults
