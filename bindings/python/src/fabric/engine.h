// Shared declarations of towline._fabric, over which towline/fabric.py makes what applications see. The rules of
// ../core.h apply here too.
//
// The engine's thread never takes the GIL: what it tells goes into a queue, from which a Python thread takes it.
#pragma once

#include <towline/fabric.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../core.h"

namespace towline::python {

// Something that the engine told. `token` names what the application gave with a transfer, receive or word.
struct FabricEvent {
  enum Kind : uint32_t { kDone = 0, kReceived = 1, kMessage = 2, kLost = 3, kCounted = 4, kChanged = 5 };
  uint32_t kind = kDone;
  uint64_t token = 0;
  int32_t status = 0;
  uint64_t peer = 0;
  uint64_t first = 0;   // bytes received; the immediate; the old value
  uint64_t second = 0;  // the count; the new value
  std::string bytes;    // the message; why the peer was lost
};

class FabricEvents {
 public:
  void push(FabricEvent event);
  // False when the time is over.
  bool pop(FabricEvent& event, uint64_t timeout_ns);

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<FabricEvent> events_;
};

struct FabricEngine;

// The argument of a watched word's callback.
struct FabricWatch {
  FabricEngine* engine;
  uint64_t token;
};

struct FabricEngine {
  towline_fabric_t* native = nullptr;
  FabricEvents events;
  std::map<uint32_t, std::unique_ptr<FabricWatch>> watches;  // by the word's index; with the GIL
  uint32_t calls = 0;  // in progress without the GIL; close() waits for them
  bool closing = false;
  pid_t pid = 0;

  FabricEngine() = default;
  FabricEngine(const FabricEngine&) = delete;
  FabricEngine& operator=(const FabricEngine&) = delete;
  ~FabricEngine() {
    const Turn turn;
    close();
  }
  // Throws Closed.
  towline_fabric_t* use() const;
  void close();
};

// One call of the C API without the GIL, during which the engine can't be destroyed.
class FabricCall {
 public:
  explicit FabricCall(FabricEngine& engine) : counted_(engine) {}
  [[nodiscard]] towline_fabric_t* native() const noexcept { return counted_.native; }

 private:
  struct Counted {
    explicit Counted(FabricEngine& one) : engine(one), native(one.use()) { ++one.calls; }
    ~Counted() { --engine.calls; }
    FabricEngine& engine;
    towline_fabric_t* native;
  };
  Counted counted_;
  WithoutGil without_gil_;
};

// A piece of memory of an object with the buffer protocol, which stays where it is as long as this lives.
struct FabricView {
  Py_buffer buffer{};
  FabricView(nb::handle object, bool writable);
  ~FabricView() { PyBuffer_Release(&buffer); }
  FabricView(const FabricView&) = delete;
  FabricView& operator=(const FabricView&) = delete;
};

struct FabricRemoteMemory {
  towline_fabric_remote_t* native = nullptr;
  explicit FabricRemoteMemory(towline_fabric_remote_t* remote) : native(remote) {}
  ~FabricRemoteMemory() { towline_fabric_remote_release(native); }
  FabricRemoteMemory(const FabricRemoteMemory&) = delete;
  FabricRemoteMemory& operator=(const FabricRemoteMemory&) = delete;
};

using FabricEngineClass = Class<FabricEngine>;
// transfers.cc
void bind_fabric_transfers(FabricEngineClass& engine);

}  // namespace towline::python
