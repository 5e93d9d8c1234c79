// Shared declarations of the extension module. It is thin: each class here owns one handle of the C API.
//
// Three rules hold everywhere.
//   1. The GIL is held for quick calls (polling, an immediate post) and released (AgentCall, WithoutGil) for
//      calls that can wait or copy much. Waits of the main thread, which runs Python's signal handlers, are cut into
//      slices, so that signals are seen. close() ends all of them.
//   2. Objects made from an agent hold a Python reference to it, which the garbage collector sees; the agent
//      holds none to them.
//   3. Fields are used only with the GIL held, or in a Turn where there is none (turns.h), so that they need no locks of
//      their own.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>
#include <towline/queue.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "turns.h"

namespace nb = nanobind;

namespace towline::python {

// ---- errors.cc

// The Python exception of `status`.
nb::object make_exception(int32_t status, const std::string& message);
[[noreturn]] void raise(nb::handle exception);
// NotYet: a wait gave up on `what`, which goes on.
[[noreturn]] void raise_not_yet(const std::string& what);
// Throws the Python exception of `status`.
[[noreturn]] void raise(int32_t status, const std::string& message);
// Throws for a negative status, with the error message of `function` if it left one, else with `otherwise`.
void check(int32_t status, const char* function, const std::string& otherwise = {});
// The member of towline.Status; a new reference.
nb::object status_object(int32_t status);
// __reduce__ of what belongs to a process: throws TypeError that says what to send instead.
nb::object refuse_pickling(nb::handle self);
void bind_errors(nb::module_& module);

// An integer, NumPy's too, from 0 to 2^64 - 1. Throws for anything else; `what` names the argument in errors.
uint64_t unsigned_integer(nb::handle object, const char* what);
// The same from -2^31 to 2^31 - 1, as ranks and processors are.
int32_t small_integer(nb::handle object, const char* what);

// ---- times

inline constexpr uint64_t kSliceNs = 50'000'000;
uint64_t now_ns() noexcept;
// Seconds or None to nanoseconds. Throws for a negative number or something that is not a number.
uint64_t timeout_ns(nb::handle seconds, uint64_t when_none);

// Only the main thread runs signal handlers.
inline bool sees_signals() noexcept { return gettid() == getpid(); }

// A point in time to wait for, slice by slice.
class Deadline {
 public:
  explicit Deadline(uint64_t timeout) noexcept
      : at_(timeout > TOWLINE_FOREVER - now_ns() ? TOWLINE_FOREVER : now_ns() + timeout) {}
  // For a thread that somebody who closes what it waits for waits for.
  [[nodiscard]] uint64_t slice() const noexcept {
    const uint64_t most = left();
    return most > kSliceNs ? kSliceNs : most;
  }
  // For a wait that the library ends when its agent closes: only the main thread wakes up before.
  [[nodiscard]] uint64_t signal_slice() const noexcept { return sees_signals() ? slice() : left(); }
  // The end of a signal_slice(), on CLOCK_MONOTONIC.
  [[nodiscard]] uint64_t slice_end() const noexcept {
    const uint64_t end = sees_signals() ? now_ns() + kSliceNs : TOWLINE_FOREVER;
    return end < at_ ? end : at_;
  }
  [[nodiscard]] uint64_t left() const noexcept {
    const uint64_t now = now_ns();
    return at_ == TOWLINE_FOREVER ? at_ : now >= at_ ? 0 : at_ - now;
  }
  [[nodiscard]] bool passed() const noexcept { return at_ != TOWLINE_FOREVER && now_ns() >= at_; }

 private:
  uint64_t at_;
};

// Throws the exception that a signal handler raised.
void check_signals();
// Sleeps a little, longer the more often it was called, with the GIL given up by the caller.
void back_off(uint32_t& turns) noexcept;

// The address of a stream of torch, of CuPy, or of any type with the CUDA stream protocol, or itself (streams.cc).
void* stream_of(nb::handle object);
// torch's current stream of that GPU, or None if the program does not use torch with GPUs.
nb::object torch_stream(int64_t gpu);

// ---- agent.cc

struct Agent {
  towline_agent_t* native = nullptr;
  uint32_t calls = 0;  // under way without the GIL; close() waits for them
  bool closing = false;
  bool hosted = true;
  uint64_t default_timeout = 30'000'000'000;
  pid_t pid = 0;
  nb::object events;  // the Queue of what is awaited, once there is one
  towline_queue_t* events_native = nullptr;
  nb::object own_queue;       // the Queue of notices that nobody subscribed to, once somebody asked
  Agent* previous = nullptr;  // in the list of open agents
  Agent* next = nullptr;

  Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();
  // Throws Closed.
  towline_agent_t* use() const;
  void close();
};

// One call of the C API without the GIL, during which the agent can't be destroyed.
class AgentCall {
 public:
  explicit AgentCall(Agent& agent) : counted_(agent) {}
  [[nodiscard]] towline_agent_t* native() const noexcept { return counted_.native; }

 private:
  struct Counted {
    explicit Counted(Agent& agent) : agent(agent), native(agent.use()) { ++agent.calls; }
    ~Counted() { --agent.calls; }
    Agent& agent;
    towline_agent_t* native;
  };
  Counted counted_;  // counts with the GIL held: made before and destroyed after
  WithoutGil without_gil_;
};

inline Agent& agent_of(nb::handle object) { return *nb::inst_ptr<Agent>(object); }
void bind_agent(nb::module_& module);

// ---- queue.cc

// Does not keep its agent open. The C API's handle works, and ends, after the agent too.
struct Queue {
  towline_queue_t* native = nullptr;
  uint32_t calls = 0;  // under way without the GIL; the last one releases a closed queue
  bool closed = false;

  explicit Queue(towline_queue_t* native) noexcept : native(native) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() { towline_queue_release(native); }
  void close() noexcept {
    closed = true;
    if (calls == 0) towline_queue_release(std::exchange(native, nullptr));
  }
};
// For posts, and for waits that an event loop awaits. Throws Closed.
towline_queue_t* events_of(Agent& agent);
// A queue with little room, for one call that waits in this thread.
class OwnEvent {
 public:
  explicit OwnEvent(Agent& agent);
  ~OwnEvent();
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  [[nodiscard]] towline_queue_t* queue() const noexcept { return queue_.native; }
  // False: the deadline came first. Sees signals.
  [[nodiscard]] bool wait(const Deadline& deadline);
  // Throws what the event says.
  [[nodiscard]] const towline_event_t& get() const;

 private:
  Queue queue_;
  towline_event_t event_{};
};
// The next notice of a queue; None if none comes in time. Throws Closed.
nb::object receive_notice(nb::handle agent, Queue& queue, nb::handle timeout);
// Seconds from now, or None for the agent's default, as the C API's absolute deadlines.
uint64_t deadline_ns(nb::handle timeout);
// Numbers that name waits and posts in queues; none is given twice.
uint64_t next_number() noexcept;
inline void* user_data(uint64_t number) noexcept { return reinterpret_cast<void*>(number); }
void bind_queue(nb::module_& module);

// Converts text of the C API, which may contain any byte but NUL, and back.
nb::str text(const char* bytes);
nb::str text(const char* bytes, size_t size);
std::string bytes_of_text(nb::handle text, const char* what);

// A read-only view of a bytes-like object for the length of a call.
class BytesView {
 public:
  explicit BytesView(nb::handle object);
  ~BytesView() { PyBuffer_Release(&view_); }
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  [[nodiscard]] const void* data() const noexcept { return view_.buf; }
  [[nodiscard]] size_t size() const noexcept { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// Reports the references of a T, listed by its visit(), to the garbage collector. Clears none: every cycle
// also contains an object of the application, which the collector clears.
template <class T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<T>(nb::handle(self))->visit(visit, arg);
}
template <class T>
inline PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)}, {0, nullptr}};

// ---- the other files

void bind_memory(nb::module_& module);
void bind_blocks(nb::module_& module);
void bind_directory(nb::module_& module);
void bind_peer(nb::module_& module);
void bind_transfer(nb::module_& module);
void bind_logging(nb::module_& module);
void bind_plan(nb::module_& module);
// "local", "remote" or "both", as TOWLINE_FENCE_*.
uint32_t fences_of(nb::handle name);
// A Result.
nb::object make_result(const towline_result_t& result);
// A coroutine: `function` of towline._asyncio, with `self` and what the method was called with.
nb::object coroutine(const char* function, nb::handle self, nb::args arguments, nb::kwargs keywords);
// A type of towline._results.
nb::object named(const char* type);
// Its iterator, for __await__.
nb::object awaiting(const char* function, nb::handle self);

// kDram.. by name, and back.
uint32_t kind_of(nb::handle name);
const char* kind_name(uint32_t kind) noexcept;
uint32_t access_of(nb::handle name);
const char* access_name(uint32_t access) noexcept;

struct Peer {
  nb::object agent;
  towline_peer_t* native = nullptr;
  uint32_t calls = 0;  // under way without the GIL; remove() refuses meanwhile

  Peer(nb::object agent, towline_peer_t* native) : agent(std::move(agent)), native(native) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();
  towline_peer_t* use() const;
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    return 0;
  }
};

struct Region {
  nb::object agent;
  nb::object owner;     // what was registered
  nb::object name;      // a str, or null without one
  Py_buffer buffer{};   // keeps its memory where it is; obj null: none
  nb::object exported;  // keeps the memory of a DLPack tensor
  towline_region_t* native = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t kind = TOWLINE_MEMORY_DRAM;
  uint64_t device = 0;
  bool read_only = false;      // says the object that was registered
  nb::object view;             // its elements, once somebody asked
  bool deregistering = false;  // by a thread that waits, or, without a handle, by the library
  const uint64_t number = next_number();

  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();
  towline_region_t* use() const;
  void let_go() noexcept;
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(owner.ptr());
    Py_VISIT(view.ptr());
    return 0;
  }
};

// Of some regions; None: none, for all of them. Throws for an empty list, and for what is no region.
std::vector<towline_region_t*> regions_of(nb::handle regions);

void bind_storage(nb::module_& module, Class<Region>& region);

struct BlockList {
  nb::object agent;
  nb::object peer;  // None: the agent's own memory
  towline_block_list_t* native = nullptr;
  uint64_t region_key = 0;  // of the region that all of it was made from; 0: none
  int64_t gpu = -1;         // the ordinal of the first one whose memory is in it; -1: none
  bool read_only = false;   // an array in it, or its region, is

  BlockList() = default;
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;
  ~BlockList() { towline_block_list_destroy(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(peer.ptr());
    return 0;
  }
};
// Throws PermissionDenied if bytes would go to an array that is read-only.
void check_writable(const BlockList& to);
nb::object make_block_list(nb::object agent, nb::object peer, nb::handle source, nb::handle page_dim,
                           nb::handle kind);
// All elements of a region of the agent, or of the peer's with this name (layout.cc).
nb::object region_list(const Region& region);
nb::object peer_region_list(nb::handle peer, nb::handle name);
void bind_layout(nb::module_& module, Class<BlockList>& list);
// From (element_bytes, counts[, strides]); raises for anything else.
void take_layout(nb::handle given, towline_layout_t& layout);

}  // namespace towline::python
