// The 3FS client's usrbio library, looked up at run time: the functions and structures that are used here, by its
// documented interface. Results are 0 or more, or -errno, unless another rule is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

namespace towline::hf3fs {

// Memory that the 3FS client shares.
struct Iov {
  uint8_t* base;
  void* handle;
  char id[16];
  char mount_point[256];
  size_t size;
  size_t block_size;
  int numa;
};

// A ring of requests.
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

struct Api {
  int (*iov_create)(Iov* iov, const char* mount_point, size_t size, size_t block_size, int numa) = nullptr;
  void (*iov_destroy)(Iov* iov) = nullptr;
  int (*ior_create)(Ior* ior, const char* mount_point, int entries, bool for_read, int io_depth,
                    int numa) = nullptr;
  void (*ior_destroy)(Ior* ior) = nullptr;
  // 0 or less: registered; else an errno.
  int (*register_fd)(int fd, uint64_t flags) = nullptr;
  void (*deregister_fd)(int fd) = nullptr;
  int (*prepare)(const Ior* ior, const Iov* iov, bool read, void* memory, int fd, size_t offset,
                 uint64_t bytes, const void* userdata) = nullptr;
  int (*submit)(const Ior* ior) = nullptr;
  int (*wait)(const Ior* ior, Completion* completions, int count, int least, const timespec* until) = nullptr;

  // Throws plugin::Failure.
  static Api load(const std::string& file);
};

}  // namespace towline::hf3fs
