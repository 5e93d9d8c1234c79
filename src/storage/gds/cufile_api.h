// NVIDIA's cuFile library, looked up at run time: the functions and structures that are used here, by its documented
// interface (CUDA 12.2 and later).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

namespace towline::gds {

// Codes are 0 or from 5001 on; `cuda` is set with kCudaError.
struct Error {
  int code;
  int cuda;
};
inline constexpr int kBaseError = 5000;
inline constexpr int kCudaError = 5011;
inline constexpr int kAlreadyOpen = 5026;
inline constexpr int kHandleKnown = 5028;

struct Description {
  int type;  // kDescriptor
  union {
    int fd;
    void* handle;
  } of;
  const void* operations;
};
inline constexpr int kDescriptor = 1;

using Handle = void*;
using Batch = void*;

struct Request {
  int mode;  // kBatchMode
  struct {
    void* base;
    off_t file_offset;
    off_t base_offset;
    size_t bytes;
  } of;
  Handle handle;
  int operation;
  void* cookie;
};
inline constexpr int kBatchMode = 1;
inline constexpr int kRead = 0;
inline constexpr int kWrite = 1;

struct Event {
  void* cookie;
  int status;
  size_t bytes;
};
inline constexpr int kPending = 0x02;
inline constexpr int kComplete = 0x10;

struct Api {
  Error (*driver_open)() = nullptr;
  Error (*handle_register)(Handle* handle, Description* description) = nullptr;
  void (*handle_deregister)(Handle handle) = nullptr;
  Error (*buffer_register)(const void* base, size_t bytes, int flags) = nullptr;
  Error (*buffer_deregister)(const void* base) = nullptr;
  ssize_t (*read)(Handle handle, void* base, size_t bytes, off_t file_offset, off_t base_offset) = nullptr;
  ssize_t (*write)(Handle handle, const void* base, size_t bytes, off_t file_offset,
                   off_t base_offset) = nullptr;
  Error (*batch_set_up)(Batch* batch, unsigned entries) = nullptr;
  Error (*batch_submit)(Batch batch, unsigned count, Request* requests, unsigned flags) = nullptr;
  Error (*batch_status)(Batch batch, unsigned least, unsigned* count, Event* events,
                        timespec* timeout) = nullptr;
  Error (*batch_cancel)(Batch batch) = nullptr;
  void (*batch_destroy)(Batch batch) = nullptr;

  // Throws plugin::Failure.
  static Api load(const std::string& file);
};

}  // namespace towline::gds
