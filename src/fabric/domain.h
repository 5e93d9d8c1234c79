// One NIC port as the engine sees it: memory registration, connections, work requests, completions. Each
// domain hides one vendor's way; the engine owns all that they should not do differently: slicing, flow
// control, retry, liveness.
//
// One thread at a time uses a domain. Functions of the data path are noexcept and allocate nothing after
// warm-up; functions of the control path throw Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "towline/status.h"

namespace towline::fabric {

inline constexpr uint32_t kMaxRails = 16;  // of one engine, and of one peer
// Domains that keep records in buffers of their own take those of every engine: else engines whose rails differ refuse
// each other.
inline constexpr uint32_t kLongestRecord = 1024 + 16;
inline constexpr std::size_t kMaxEndpointBytes = 512;  // what the ends of a connection tell each other

struct DomainTraits {
  std::string kind;                  // only domains of equal kind can talk: "loopback", "ofi:shm"
  std::string device;                // the kernel's name of the RDMA device; empty: none
  std::string name;                  // for people: "ofi tcp;ofi_rxm eth0"
  uint32_t send_depth = 256;         // requests under way per connection
  uint32_t receive_depth = 64;       // receives posted per connection
  uint32_t completion_depth = 4096;  // completions that can wait for poll(), all connections together
  uint32_t max_connections = 1024;
  uint32_t chain = 32;                 // requests per post from which on more do not help
  uint64_t slice_bytes = 64 << 10;     // longer segments are cut
  uint64_t window_bytes = 4 << 20;     // under way per connection; more does not help
  uint64_t bandwidth_bytes_per_s = 0;  // 0: unknown
  uint32_t record_bytes = 60 << 10;    // of a receive at most
  uint32_t immediate_bits = 0;         // that an immediate carries: 0 (none), 32 or 64
  bool ordered = true;                 // within a connection a send or immediate arrives after earlier writes
  bool completes_in_order = true;      // a completion covers unsignalled requests before it
  bool registers_beside = false;       // memory may be registered by another thread beside everything else
  bool other_processes_only = false;   // it must not reach engines of this process
  bool moves_by_polls = false;         // of both ends, and nothing wakes the other one
  bool breaks_for_memory = false;      // where memory of this side is not mapped any more, without saying so
  int32_t numa_node = -1;              // -1: unknown
};

struct MemoryToRegister {
  void* address = nullptr;
  uint64_t bytes = 0;
  bool remote_read = false;
  bool remote_write = false;
  int dmabuf_fd = -1;          // of memory that is not the processor's
  uint64_t dmabuf_offset = 0;  // of its first byte
  uint64_t device = 0;         // the GPU's number in this process
};

// base: what the NIC calls the region's first byte; its address, or 0 for NICs that count from the start.
struct Registration {
  uint64_t local_key = 0;
  uint64_t remote_key = 0;
  uint64_t base = 0;
  uint64_t handle = 0;  // the domain's own
};

enum class RequestKind : uint8_t { kWrite, kWriteImmediate, kRead, kSend };

struct WorkRequest {
  uint64_t cookie;
  uint64_t local;
  uint64_t remote;
  uint64_t local_key;
  uint64_t remote_key;
  uint64_t immediate;
  uint32_t length;
  RequestKind kind;
  bool signalled;
};

struct ReceiveRequest {
  uint64_t cookie;
  uint64_t address;
  uint64_t local_key;
  uint32_t length;
};

enum class CompletionKind : uint8_t {
  kRequest,           // of a work request; with an error the connection is down
  kReceive,           // a peer's send fills a receive; length is its size
  kReceiveImmediate,  // a peer's immediate; consumes a receive, whose buffer is untouched
  kConnectionDown,    // status says why; may come in addition to failed requests
  kDomainDown,        // the port does not work any more, nor any of its connections
};

struct Completion {
  uint64_t cookie;
  uint64_t immediate;
  uint32_t connection;
  uint32_t length;
  Status status;
  CompletionKind kind;
};

// Of a connection. Its initiator posts transfers on it, its responder sends credits.
enum class ConnectionEnd : uint8_t { kInitiator, kResponder };

class Domain {
 public:
  virtual ~Domain() = default;

  virtual const DomainTraits& traits() const noexcept = 0;

  // The bytes by which a peer reaches this port, at most kMaxEndpointBytes.
  virtual std::vector<uint8_t> address() const = 0;

  // The memory stays registered until it is deregistered. Throws naming the vendor's reason.
  virtual Registration register_memory(const MemoryToRegister& memory) = 0;
  virtual void deregister_memory(const Registration& registration) noexcept = 0;

  // Makes this end of a connection, under a number that the caller chooses (below max_connections and free).
  // Returns what the other end needs. Receives may be posted from here on.
  virtual std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) = 0;

  // Joins it to the other end. Requests may be posted when this returns.
  virtual void connect(uint32_t connection, std::span<const uint8_t> other_end) = 0;

  // When it returns, nothing more is placed, read or received over this end. poll() still returns what
  // happened before.
  virtual void stop(uint32_t connection) noexcept = 0;

  // After stop(). poll() returns nothing more of it, and its number is free.
  virtual void release(uint32_t connection) noexcept = 0;

  // Posts the first of `requests` that fit, in order, and returns how many. Fewer than all: the connection is
  // down, which poll() tells; or, only where completes_in_order is false, try again after poll().
  virtual std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept = 0;
  virtual std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                                    std::size_t count) noexcept = 0;

  virtual std::size_t poll(Completion* completions, std::size_t capacity) noexcept = 0;

  // A descriptor that becomes readable when poll() has something after arm() returned true; -1: poll.
  virtual int event_fd() const noexcept { return -1; }
  virtual bool arm() noexcept { return false; }

  // After kDomainDown: whether the port works again. Registrations have stayed valid.
  virtual bool recover() noexcept { return false; }
};

}  // namespace towline::fabric
