// The extension module towline._fabric: engines, their memory and what they tell.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "engine.h"

namespace towline::python {

void FabricEvents::push(FabricEvent event) {
  {
    const std::lock_guard held{mutex_};
    events_.push_back(std::move(event));
  }
  came_.notify_one();
}

bool FabricEvents::pop(FabricEvent& event, uint64_t timeout_ns) {
  std::unique_lock held{mutex_};
  if (!came_.wait_for(held, std::chrono::nanoseconds{timeout_ns}, [this] { return !events_.empty(); }))
    return false;
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

towline_fabric_t* FabricEngine::use() const {
  if (native == nullptr || closing) raise(TOWLINE_CLOSED, "the engine is closed");
  if (pid != getpid()) raise(TOWLINE_FORKED, "the engine was made before fork()");
  return native;
}

void FabricEngine::close() {
  if (native == nullptr || closing || pid != getpid()) return;
  closing = true;
  uint32_t turns = 0;
  while (calls != 0) {
    const WithoutGil without_gil;
    back_off(turns);
  }
  {
    const WithoutGil without_gil;
    towline_fabric_destroy(native);
  }
  native = nullptr;
}

FabricView::FabricView(nb::handle object, bool writable) {
  if (PyObject_GetBuffer(object.ptr(), &buffer, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0)
    throw nb::python_error();
}

namespace {

FabricEngine& engine_of(void* context) { return *static_cast<FabricEngine*>(context); }

void open_engine(FabricEngine* engine, const std::vector<std::string>& rails, const std::string& listen,
                 nb::object worker_cpu, nb::object watcher_cpu, bool wants_counts) {
  new (engine) FabricEngine;
  std::vector<const char*> names;
  for (const std::string& rail : rails) names.push_back(rail.c_str());
  towline_fabric_options_t options{};
  options.struct_size = sizeof options;
  options.rails = names.data();
  options.rail_count = names.size();
  options.listen = listen.empty() ? nullptr : listen.c_str();
  options.context = engine;
  options.on_message = [](void* context, towline_fabric_peer_t peer, const void* message, size_t bytes) {
    engine_of(context).events.push(
        {.kind = FabricEvent::kMessage, .peer = peer, .bytes = {static_cast<const char*>(message), bytes}});
  };
  options.on_lost = [](void* context, towline_fabric_peer_t peer, const char* why) {
    engine_of(context).events.push({.kind = FabricEvent::kLost, .peer = peer, .bytes = why});
  };
  if (wants_counts)
    options.on_counted = [](void* context, towline_fabric_peer_t peer, uint32_t immediate, uint32_t count) {
      engine_of(context).events.push(
          {.kind = FabricEvent::kCounted, .peer = peer, .first = immediate, .second = count});
    };
  int32_t worker = 0;
  int32_t watcher = 0;
  if (!worker_cpu.is_none()) options.worker_cpu = &(worker = small_integer(worker_cpu, "worker_cpu"));
  if (!watcher_cpu.is_none()) options.watcher_cpu = &(watcher = small_integer(watcher_cpu, "watcher_cpu"));
  engine->pid = getpid();
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_fabric_create(&options, &engine->native);
  }
  check(status, "towline_fabric_create");
}

nb::bytes address(FabricEngine& engine) {
  std::string blob(4096, '\0');
  size_t bytes = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_address(call.native(), blob.data(), blob.size(), &bytes);
    if (bytes > blob.size()) {
      blob.resize(bytes);
      status = towline_fabric_address(call.native(), blob.data(), blob.size(), &bytes);
    }
  }
  check(status, "towline_fabric_address");
  return nb::bytes(blob.data(), bytes);
}

uint64_t connect(FabricEngine& engine, nb::handle given) {
  const BytesView blob(given);
  uint64_t peer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_connect(call.native(), blob.data(), blob.size(), &peer);
  }
  check(status, "towline_fabric_connect");
  return peer;
}

void disconnect(FabricEngine& engine, uint64_t peer) {
  const FabricCall call(engine);
  (void)towline_fabric_disconnect(call.native(), peer);
}

uint64_t register_memory(FabricEngine& engine, uint64_t memory_address, uint64_t bytes, uint32_t access) {
  towline_fabric_memory_t* memory = nullptr;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_register(call.native(), reinterpret_cast<void*>(memory_address), bytes, access,
                                     &memory);
  }
  check(status, "towline_fabric_register");
  return reinterpret_cast<uint64_t>(memory);
}

uint64_t register_gpu(FabricEngine& engine, uint64_t memory_address, uint64_t bytes, uint32_t access,
                      uint32_t gpu) {
  towline_fabric_memory_t* memory = nullptr;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_register_gpu(call.native(), reinterpret_cast<void*>(memory_address), bytes,
                                         access, gpu, &memory);
  }
  check(status, "towline_fabric_register_gpu");
  return reinterpret_cast<uint64_t>(memory);
}

uint64_t register_dma_buf(FabricEngine& engine, uint64_t memory_address, uint64_t bytes, uint32_t access,
                          int fd, uint64_t offset) {
  towline_fabric_memory_t* memory = nullptr;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_register_dma_buf(call.native(), reinterpret_cast<void*>(memory_address), bytes,
                                             access, fd, offset, &memory);
  }
  check(status, "towline_fabric_register_dma_buf");
  return reinterpret_cast<uint64_t>(memory);
}

nb::str topology() {
  size_t needed = 0;
  std::string text;
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_fabric_topology(nullptr, 0, &needed);
    text.resize(needed);
    if (status >= 0) status = towline_fabric_topology(text.data(), text.size(), &needed);
  }
  check(status, "towline_fabric_topology");
  return nb::str(text.c_str());
}

void deregister(FabricEngine& engine, uint64_t memory) {
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_deregister(call.native(), reinterpret_cast<towline_fabric_memory_t*>(memory));
  }
  check(status, "towline_fabric_deregister");
}

nb::bytes descriptor(FabricEngine& engine, uint64_t memory) {
  (void)engine.use();
  std::array<char, 4096> blob;
  size_t bytes = 0;
  check(towline_fabric_descriptor(reinterpret_cast<towline_fabric_memory_t*>(memory), blob.data(),
                                  blob.size(), &bytes),
        "towline_fabric_descriptor");
  return nb::bytes(blob.data(), bytes);
}

nb::object next_event(FabricEngine& engine, double seconds) {
  FabricEvent event;
  bool came = false;
  {
    const WithoutGil without_gil;
    came = engine.events.pop(event, static_cast<uint64_t>(seconds * 1e9));
  }
  if (!came) return nb::none();
  return nb::make_tuple(event.kind, event.token, event.status, event.peer, event.first, event.second,
                        nb::bytes(event.bytes.data(), event.bytes.size()));
}

nb::list rails(FabricEngine& engine) {
  std::array<towline_fabric_rail_t, 16> known{};
  size_t count = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_rails(call.native(), known.data(), sizeof known[0], known.size(), &count);
  }
  check(status, "towline_fabric_rails");
  nb::list list;
  for (size_t i = 0; i < count; ++i) {
    const towline_fabric_rail_t& rail = known[i];
    nb::dict told;
    told["name"] = text(rail.name);
    told["bandwidth_bytes_per_s"] = rail.bandwidth_bytes_per_s;
    told["requests"] = rail.requests;
    told["posts"] = rail.posts;
    told["bytes"] = rail.bytes;
    told["connections"] = rail.connections;
    told["breaks"] = rail.breaks;
    told["evictions"] = rail.evictions;
    told["retried"] = rail.retried;
    told["longest_pause_ns"] = rail.longest_pause_ns;
    told["down"] = rail.down != 0;
    told["numa_node"] = rail.numa_node;
    list.append(told);
  }
  return list;
}

// (index, address here, address for GPUs).
nb::tuple watch(FabricEngine& engine, bool gpus, uint64_t token) {
  auto watched = std::make_unique<FabricWatch>(FabricWatch{&engine, token});
  towline_fabric_word_t word{};
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_watch(
        call.native(), gpus ? 1 : 0,
        [](void* given, uint64_t before, uint64_t now) {
          const auto& told = *static_cast<FabricWatch*>(given);
          told.engine->events.push(
              {.kind = FabricEvent::kChanged, .token = told.token, .first = before, .second = now});
          return 1;
        },
        watched.get(), &word);
  }
  check(status, "towline_fabric_watch");
  engine.watches[word.index] = std::move(watched);
  return nb::make_tuple(word.index, reinterpret_cast<uint64_t>(word.host), word.gpu);
}

// Another thread may be given the same index as soon as it is free, so the watch is taken out before that.
void unwatch(FabricEngine& engine, uint32_t index) {
  auto watched = engine.watches.extract(index);
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_unwatch(call.native(), index);
  }
  check(status, "towline_fabric_unwatch");
}

}  // namespace
}  // namespace towline::python

NB_MODULE(_fabric, module) {
  using namespace towline::python;  // NOLINT: the module's own
  // An engine that the application still holds at exit is already closed, so it is not a leak.
  nb::set_leak_warnings(false);
  bind_errors(module);
  Class<FabricView>(module, "View")
      .def(nb::init<nb::handle, bool>(), nb::arg("object"), nb::arg("writable"))
      .def_prop_ro("address",
                   [](const FabricView& view) { return reinterpret_cast<uint64_t>(view.buffer.buf); })
      .def_prop_ro("nbytes", [](const FabricView& view) { return view.buffer.len; });
  Class<FabricRemoteMemory>(module, "Remote")
      .def("__init__", [](FabricRemoteMemory* remote, nb::handle blob) {
        const BytesView bytes(blob);
        towline_fabric_remote_t* native = nullptr;
        check(towline_fabric_import(bytes.data(), bytes.size(), &native), "towline_fabric_import");
        new (remote) FabricRemoteMemory(native);
      });
  module.def("topology", &topology);
  FabricEngineClass engine(module, "Engine");
  engine.def("__init__", &open_engine, nb::arg("rails"), nb::arg("listen"), nb::arg("worker_cpu").none(),
             nb::arg("watcher_cpu").none(), nb::arg("wants_counts"));
  engine.def("close", &FabricEngine::close);
  engine.def("address", &address);
  engine.def("connect", &connect);
  engine.def("disconnect", &disconnect);
  engine.def("register", &register_memory);
  engine.def("register_gpu", &register_gpu);
  engine.def("register_dma_buf", &register_dma_buf);
  engine.def("deregister", &deregister);
  engine.def("descriptor", &descriptor);
  engine.def("next_event", &next_event);
  engine.def("rails", &rails);
  engine.def("watch", &watch);
  engine.def("unwatch", &unwatch);
  engine.def_prop_ro("watches", [](const FabricEngine& watching) { return watching.watches.size(); });
  bind_fabric_transfers(engine);
}
