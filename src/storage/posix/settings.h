// The configuration of one instance, keys "posix.*"; README.md explains them.
#pragma once

#include <cstdint>

#include "towline/plugin/backend.hpp"

namespace towline::posix {

// The way in which system calls are made.
enum class Engine {
  kAuto,     // by size, caching and direction
  kUring,    // io_uring
  kAio,      // the kernel's older asynchronous I/O (io_submit)
  kThreads,  // a pool of threads
  kPread,    // the worker itself, a slice at a time
};

[[nodiscard]] const char* engine_name(Engine engine) noexcept;

struct Settings {
  Engine engine = Engine::kAuto;
  uint32_t threads = 0;           // of the pool, at most
  uint32_t handed = 0;            // of these, that copy what was handed over, at most
  uint32_t queue_depth = 0;       // operations in the kernel at once, of each worker
  uint64_t inline_bytes = 0;      // plans up to this size are tried inside post
  uint64_t parallel_bytes = 0;    // cached reads from this size on are shared with threads
  uint64_t spin_ns = 0;           // how long a thread of the pool polls after its last work
  uint32_t spare_processors = 0;  // of this process, but the worker's; not set, found
  bool register_files = false;    // with io_uring
  bool register_buffers = false;
  bool sqpoll = false;

  // Throws plugin::Failure naming key and value.
  static Settings read(const plugin::Host& host);
};

}  // namespace towline::posix
