// A source receives a socket's payload: as fragments of a pool of memory, or as ordinary ("linear") bytes. One
// interface for every way in which a kernel, or a test, hands them over.
//
// Each fragment of a pool is held by a token until it is released; a pool whose fragments are all held receives
// nothing more. So callers bound what they hold, and copy out what they must keep for longer.
//
// One thread at a time: the worker of the socket's connection. poll() and release() neither allocate nor throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "framing/lane.h"
#include "towline/plugin/landing.h"

namespace towline::framing {
class Lander;
}

namespace towline::tcpx {

// Reads memory of a GPU, which no processor reaches. All pools of a source are of one, or none is.
class PoolReader {
 public:
  PoolReader() = default;
  PoolReader(const PoolReader&) = delete;
  PoolReader& operator=(const PoolReader&) = delete;
  virtual ~PoolReader() = default;

  [[nodiscard]] virtual uint64_t device() const noexcept = 0;  // the GPU
  // Makes the memory reachable for this connection's copies on that GPU.
  [[nodiscard]] virtual Status reach(framing::Lander& lander) noexcept = 0;
  // Copies pieces to host memory, side by side, and waits for the GPU. Any worker.
  [[nodiscard]] virtual Status read(std::span<const towline_landing_piece> pieces, uint8_t* to,
                                    int32_t& vendor_code) noexcept = 0;
};

// Memory in which fragments lie.
struct Pool {
  uint8_t* memory = nullptr;  // where this process's processors read it; with a reader: where its GPU does
  uint64_t bytes = 0;
  bool pinnable = false;         // a GPU can be made to reach it
  PoolReader* reader = nullptr;  // of memory on a GPU
};

struct Fragment {
  uint64_t offset = 0;  // in its pool
  uint32_t bytes = 0;
  uint32_t token = 0;
  uint16_t pool = 0;    // index into pools()
  bool linear = false;  // it lies in the caller's buffer: no pool, no token
};

struct Polled {
  framing::IoResult io;  // kOk: `bytes` of all fragments; kAgain: nothing came; kClosed; or why it failed
  uint32_t count = 0;    // of fragments
  bool dry = false;      // kAgain, since every fragment of the pool is held
};

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  // Takes at most `most` bytes off the socket, in at most out.size() fragments, in the stream's order. Linear ones lie
  // side by side at the beginning of `linear`, which has room for `most`.
  [[nodiscard]] virtual Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept = 0;
  // In any order, each once. Tokens that are not held are ignored and counted.
  virtual void release(std::span<const uint32_t> tokens) noexcept = 0;
  [[nodiscard]] virtual std::span<const Pool> pools() const noexcept = 0;
  // How many tokens can be held before nothing more arrives; UINT32_MAX: no limit.
  [[nodiscard]] virtual uint32_t tokens() const noexcept = 0;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // A descriptor that is readable when there may be something to poll for; -1: the socket itself.
  [[nodiscard]] virtual int wakes_by() const noexcept { return -1; }
  // The number of releases that named no held token.
  [[nodiscard]] virtual uint64_t bad_releases() const noexcept { return 0; }
};

// Makes sources of one sort.
class Provider {
 public:
  Provider() = default;
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;
  virtual ~Provider() = default;

  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // Names the memory that it receives into, for people.
  [[nodiscard]] virtual std::string where() const { return "host memory"; }
  // Makes the source of a connected, non-blocking stream socket, which outlives it. Throws Error.
  virtual std::unique_ptr<Source> make(int socket) = 0;
};

}  // namespace towline::tcpx
