// Reads tensors from Python objects without a copy: torch, NumPy, buffers, DLPack, and (address, elements,
// type). Imports none of these packages. Call everything with the GIL held.
#pragma once

#include <towline/collectives.h>

#include <memory>
#include <vector>

#include "../core.h"

namespace towline::python {

struct View {
  static constexpr uint32_t kUnknownType = ~uint32_t{0};

  void* data = nullptr;
  uint64_t count = 0;       // elements
  uint64_t item_bytes = 1;  // of one
  uint64_t rows = 1;        // extent of the first dimension
  uint32_t datatype = kUnknownType;
  bool read_only = false;
};

// The objects that must stay alive and in place until an operation has ended.
class Held {
 public:
  Held() = default;
  Held(Held&&) noexcept = default;
  Held& operator=(Held&&) = delete;
  // Moves everything so far into the result.
  Held take() {
    Held taken;
    taken.keep_ = keep_;
    taken.gpus_ = gpus_;
    taken.objects_.swap(objects_);
    taken.buffers_.swap(buffers_);
    taken.others_.swap(others_);
    return taken;
  }
  ~Held();

  // Throws unless it is contiguous memory of this host, or of a GPU if that is taken. `what` names it in errors.
  View view(nb::handle tensor, const char* what);
  View writable_view(nb::handle tensor, const char* what);
  // Also keeps references to the objects. Without this only buffers are held, and the caller's references
  // must last for the call.
  void keep_objects() noexcept { keep_ = true; }
  // For operations on streams.
  void take_gpus() noexcept { gpus_ = true; }
  int visit(visitproc visit, void* arg) const;

 private:
  bool view_torch(nb::handle tensor, const char* what, View& view);
  bool view_buffer(nb::handle tensor, const char* what, View& view);
  bool view_tuple(nb::handle tensor, const char* what, View& view);
  bool view_named(nb::handle tensor, const char* what, View& view);
  bool view_dlpack(nb::handle tensor, const char* what, View& view);

  bool keep_ = false;
  bool gpus_ = false;
  std::vector<nb::object> objects_;
  std::vector<std::unique_ptr<Py_buffer>> buffers_;
  std::vector<std::shared_ptr<void>> others_;
};

// A type by its name ("float32", "bfloat16", "torch.float32", ..), or kUnknownType.
uint32_t datatype_of_name(std::string_view name) noexcept;

}  // namespace towline::python
