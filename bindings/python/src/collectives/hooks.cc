// Functions that are called before and after operations, and when a communicator breaks.
#include "communicator.h"

#include <iterator>
#include <utility>

namespace towline::python {

namespace {

struct Hook {
  nb::object communicator;
  nb::object function;
  towline_hook_t* native = nullptr;
  uint32_t kind = 0;

  Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() { remove(); }
  void remove() {
    towline_hook_t* const removed = std::exchange(native, nullptr);
    if (removed == nullptr) return;
    const WithoutGil without_gil;
    towline_hook_remove(removed);
  }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(communicator.ptr());
    Py_VISIT(function.ptr());
    return 0;
  }
};

nb::dict describe(const towline_hook_args_t& args, uint32_t kind) {
  nb::dict told;
  if (kind == TOWLINE_HOOK_ABORT) {
    told["reason"] = text(args.text != nullptr ? args.text : "");
    told["status"] = status_object(args.status);
    return told;
  }
  told["op"] = towline_collective_op_name(args.op);
  told["op_id"] = args.op_id;
  told["async_op"] = args.async != 0;
  if (kind == TOWLINE_HOOK_POST || kind == TOWLINE_HOOK_REPLAY) told["status"] = status_object(args.status);
  if (args.call != nullptr) {
    told["datatype"] = towline_datatype_name(args.call->datatype);
    told["count"] = args.call->count;
    told["root"] = args.call->root;
    told["reduction"] = towline_reduction_name(args.call->reduction);
  }
  return told;
}

void called(void* context, const towline_hook_args_t* args) {
  const WithGil gil;
  if (!gil) return;
  const auto& hook = *static_cast<const Hook*>(context);
  const nb::dict told = describe(*args, hook.kind);
  call_from_anywhere(hook.communicator, hook.function, told.ptr());
}

nb::object add(nb::handle self, nb::handle kind, nb::handle function) {
  static constexpr const char* kKinds[] = {"pre", "post", "abort", "replay"};
  uint32_t chosen = 0;
  while (chosen < std::size(kKinds) &&
         (!PyUnicode_Check(kind.ptr()) || PyUnicode_CompareWithASCIIString(kind.ptr(), kKinds[chosen]) != 0))
    ++chosen;
  if (chosen == std::size(kKinds))
    raise(TOWLINE_INVALID_ARGUMENT, "kind is 'pre', 'post', 'abort' or 'replay'");
  if (PyCallable_Check(function.ptr()) == 0) raise(TOWLINE_INVALID_ARGUMENT, "function can't be called");
  auto* hook = new Hook;
  const nb::object result = give(hook);
  hook->communicator = nb::borrow(self);
  hook->function = nb::borrow(function);
  hook->kind = chosen;
  int32_t status = 0;
  {
    const CommunicatorCall call(communicator_of(self));
    status = towline_communicator_hook(call.native(), chosen, &called, hook, &hook->native);
  }
  check(status, "towline_communicator_hook");
  return result;
}

}  // namespace

void bind_hooks(CommunicatorClass& communicator, nb::module_& module) {
  Class<Hook>(module, "Hook", nb::type_slots(collected<Hook>)).def("remove", &Hook::remove);
  communicator.def("hook", &add, nb::arg("kind"), nb::arg("function"));
}

}  // namespace towline::python
