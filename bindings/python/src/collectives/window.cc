// Windows: memory of every rank that other ranks put into and get from.
#include "communicator.h"

#include <towline/collectives_gpu.h>

#include <utility>

namespace towline::python {

namespace {

struct Window {
  nb::object communicator;
  Held held;
  towline_window_t* native = nullptr;
  uint32_t calls = 0;
  uint32_t exports = 0;
  bool on_gpu = false;

  Window() { held.keep_objects(); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  // Does not close: closing is collective and may wait for ever. A window that is not closed keeps its
  // memory.
  ~Window() {
    const Turn turn;
    if (native == nullptr || communicator_of(communicator).native == nullptr) return;
    --communicator_of(communicator).windows;
    new Held(std::move(held));
  }
  [[nodiscard]] towline_window_t* use() const {
    (void)communicator_of(communicator).use();
    if (native == nullptr) raise(TOWLINE_STALE, "the window is closed");
    return native;
  }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(communicator.ptr());
    return held.visit(visit, arg);
  }
};

Window& window_of(nb::handle object) { return *nb::inst_ptr<Window>(object); }

// A rank's memory as a buffer, which keeps the window.
struct WindowMemory {
  nb::object window;
  void* address = nullptr;
  Py_ssize_t bytes = 0;
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(window.ptr());
    return 0;
  }
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto& memory = *nb::inst_ptr<WindowMemory>(nb::handle(self));
  if (window_of(memory.window).native == nullptr || window_of(memory.window).on_gpu) {
    PyErr_SetString(PyExc_BufferError,
                    window_of(memory.window).on_gpu
                        ? "the window is in memory of a GPU: take it by __cuda_array_interface__"
                        : "the window is closed");
    return -1;
  }
  if (PyBuffer_FillInfo(view, self, memory.address, memory.bytes, 0, flags) != 0) return -1;
  ++window_of(memory.window).exports;
  return 0;
}

void release_buffer(PyObject* self, Py_buffer*) {
  --window_of(nb::inst_ptr<WindowMemory>(nb::handle(self))->window).exports;
}

PyType_Slot memory_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<WindowMemory>)},
                              {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

// A call of the C API without the GIL, during which neither window nor communicator can be destroyed.
template <class Function>
void call(Window& window, const char* name, Function function) {
  towline_window_t* const native = window.use();
  int32_t status = 0;
  ++window.calls;
  {
    const CommunicatorCall communicator(communicator_of(window.communicator));
    status = function(native);
  }
  --window.calls;
  check(status, name);
}

nb::object make(nb::handle self, nb::handle memory) {
  auto* window = new Window;
  const nb::object result = give(window);
  window->communicator = nb::borrow(self);
  void* address = nullptr;
  uint64_t bytes = 0;
  if (PyLong_Check(memory.ptr())) {
    bytes = unsigned_integer(memory, "memory");
  } else {
    window->held.take_gpus();
    const View view = window->held.writable_view(memory, "memory");
    address = view.data;
    bytes = view.count * view.item_bytes;
  }
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(self));
    status = towline_window_create(call.native(), address, bytes, &window->native);
  }
  check(status, "towline_window_create");
  char none = 0;  // of the wrong size, which only a GPU's window looks at
  window->on_gpu = towline_window_symmetric(window->native, &none, 0) == TOWLINE_INVALID_ARGUMENT;
  ++communicator_of(self).windows;
  return result;
}

void close(Window& window, nb::handle timeout) {
  if (window.native == nullptr) return;
  const uint64_t nanoseconds =
      timeout_ns(timeout, towline_communicator_timeout(communicator_of(window.communicator).use()));
  if (window.exports != 0) raise(TOWLINE_BUSY, "arrays still use the window's memory");
  if (window.calls != 0) raise(TOWLINE_BUSY, "another thread uses the window");
  towline_window_t* const native = std::exchange(window.native, nullptr);
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(window.communicator));
    status = towline_window_destroy(native, nanoseconds);
  }
  --communicator_of(window.communicator).windows;
  check(status, "towline_window_destroy");
}

nb::object memory(nb::handle self, nb::handle rank) {
  const Window& window = window_of(self);
  const int whose = rank.is_none() ? communicator_of(window.communicator).rank : small_integer(rank, "rank");
  if (whose < 0 || whose >= communicator_of(window.communicator).size)
    raise(TOWLINE_OUT_OF_RANGE, "there is no rank " + std::to_string(whose));
  auto made = std::make_unique<WindowMemory>();
  made->window = nb::borrow(self);
  made->address = towline_window_map_remote(window.use(), whose);
  made->bytes = static_cast<Py_ssize_t>(towline_window_bytes(window.use(), whose));
  if (made->address == nullptr && made->bytes != 0)
    raise(TOWLINE_UNSUPPORTED, "the memory of rank " + std::to_string(whose) + " can't be reached directly");
  return give(made.release());
}

void issue(Window& window, uint32_t op, int rank, uint64_t offset, nb::handle tensor, nb::handle stream,
           nb::handle timeout, uint64_t channel = 0) {
  Held held;
  held.take_gpus();
  towline_window_call_t call_made = {};
  call_made.struct_size = sizeof call_made;
  call_made.op = op;
  call_made.rank = rank;
  call_made.offset = offset;
  call_made.channel = channel;
  if (!tensor.is_none()) {
    const View view =
        op == TOWLINE_WINDOW_GET ? held.writable_view(tensor, "tensor") : held.view(tensor, "tensor");
    call_made.address = view.data;
    call_made.bytes = view.count * view.item_bytes;
  }
  void* const native_stream = stream_of(stream);
  const uint64_t nanoseconds = timeout_ns(timeout, 0);
  call(window, "towline_window_issue", [&](towline_window_t* native) {
    return towline_window_issue(native, &call_made, nanoseconds, native_stream);
  });
}

void need_no_channel(uint64_t channel) {
  if (channel != 0) raise(TOWLINE_INVALID_ARGUMENT, "only signals in a stream have channels");
}

// The size of the struct in towline/device/symmetric.cuh; the library refuses another.
constexpr size_t kSymmetricBytes = 2 * 16 * sizeof(uint64_t) + sizeof(uint64_t) + 4 * sizeof(uint32_t);

nb::bytes symmetric(Window& window) {
  char made[kSymmetricBytes];
  call(window, "towline_window_symmetric",
       [&](towline_window_t* native) { return towline_window_symmetric(native, made, sizeof made); });
  return nb::bytes(made, sizeof made);
}

nb::dict array_interface(const WindowMemory& memory) {
  const Window& window = window_of(memory.window);
  if (!window.on_gpu) throw nb::attribute_error("the window is not in memory of a GPU");
  (void)window.use();
  nb::dict made;
  made["shape"] = nb::make_tuple(memory.bytes);
  made["typestr"] = "|u1";
  made["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(memory.address), false);
  made["version"] = 3;
  return made;
}

}  // namespace

void bind_window(CommunicatorClass& communicator, nb::module_& module) {
  using nb::arg;
  Class<WindowMemory>(module, "WindowMemory", nb::type_slots(memory_slots))
      .def_prop_ro("address",
                   [](const WindowMemory& one) { return reinterpret_cast<uintptr_t>(one.address); })
      .def_prop_ro("bytes", [](const WindowMemory& one) { return one.bytes; })
      .def_prop_ro("__cuda_array_interface__", &array_interface);
  Class<Window>(module, "Window", nb::type_slots(collected<Window>))
      .def(
          "bytes", [](const Window& window, int rank) { return towline_window_bytes(window.use(), rank); },
          arg("rank"))
      .def("memory", &memory, arg("rank").none() = nb::none())
      .def(
          "put",
          [](Window& window, int rank, uint64_t offset, nb::handle tensor, nb::handle stream,
             nb::handle timeout) {
            if (!stream.is_none())
              return issue(window, TOWLINE_WINDOW_PUT, rank, offset, tensor, stream, timeout);
            Held held;
            if (window.on_gpu) held.take_gpus();
            const View view = held.view(tensor, "tensor");
            call(window, "towline_window_put", [&](towline_window_t* native) {
              return towline_window_put(native, rank, offset, view.data, view.count * view.item_bytes);
            });
          },
          arg("rank"), arg("offset"), arg("tensor"), arg("stream").none() = nb::none(),
          arg("timeout").none() = nb::none())
      .def(
          "get",
          [](Window& window, int rank, uint64_t offset, nb::handle tensor, nb::handle stream,
             nb::handle timeout) {
            if (!stream.is_none())
              return issue(window, TOWLINE_WINDOW_GET, rank, offset, tensor, stream, timeout);
            Held held;
            if (window.on_gpu) held.take_gpus();
            const View view = held.writable_view(tensor, "tensor");
            call(window, "towline_window_get", [&](towline_window_t* native) {
              return towline_window_get(native, rank, offset, view.data, view.count * view.item_bytes);
            });
          },
          arg("rank"), arg("offset"), arg("tensor"), arg("stream").none() = nb::none(),
          arg("timeout").none() = nb::none())
      .def(
          "signal",
          [](Window& window, int rank, nb::handle stream, nb::handle timeout, uint64_t channel) {
            if (!stream.is_none())
              return issue(window, TOWLINE_WINDOW_SIGNAL, rank, 0, nb::none(), stream, timeout, channel);
            need_no_channel(channel);
            call(window, "towline_window_signal",
                 [&](towline_window_t* native) { return towline_window_signal(native, rank); });
          },
          arg("rank"), arg("stream").none() = nb::none(), arg("timeout").none() = nb::none(),
          arg("channel") = 0)
      .def(
          "wait_signal",
          [](Window& window, int rank, nb::handle timeout, nb::handle stream, uint64_t channel) {
            if (!stream.is_none())
              return issue(window, TOWLINE_WINDOW_WAIT_SIGNAL, rank, 0, nb::none(), stream, timeout, channel);
            need_no_channel(channel);
            const uint64_t nanoseconds =
                timeout_ns(timeout, towline_communicator_timeout(communicator_of(window.communicator).use()));
            call(window, "towline_window_wait_signal", [&](towline_window_t* native) {
              return towline_window_wait_signal(native, rank, nanoseconds);
            });
          },
          arg("rank"), arg("timeout").none() = nb::none(), arg("stream").none() = nb::none(),
          arg("channel") = 0)
      .def("symmetric", &symmetric)
      .def_prop_ro("exports", [](const Window& window) { return window.exports; })
      .def_prop_ro("on_gpu", [](const Window& window) { return window.on_gpu; })
      .def("close", &close, arg("timeout").none() = nb::none());
  communicator.def("window", &make, arg("memory"));
}

}  // namespace towline::python
