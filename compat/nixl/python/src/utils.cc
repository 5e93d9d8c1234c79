// nixl._utils: raw memory for tests and examples that have no NumPy.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace nb = nanobind;

namespace {

constexpr size_t kAlignment = 4096;  // for storage that is read and written past the page cache
constexpr int kMark = 0xba;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

uintptr_t allocate(size_t size) {
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded != 0 ? rounded : kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return reinterpret_cast<uintptr_t>(memory);
}

void verify(uintptr_t first, uintptr_t second, size_t size) {
  if (std::memcmp(pointer(first), pointer(second), size) == 0) return;
  PyErr_SetString(PyExc_AssertionError, "the two pieces of memory differ");
  throw nb::python_error();
}

}  // namespace

NB_MODULE(_utils, module) {
  module.doc() = "Raw memory by its address. Nothing here checks an address.";
  module.def("malloc_passthru", &allocate, nb::arg("size"),
             "Memory of `size` bytes at a multiple of 4096: its address.");
  module.def(
      "free_passthru", [](uintptr_t address) { std::free(pointer(address)); }, nb::arg("address"),
      "Frees what malloc_passthru gave.");
  module.def(
      "ba_buf", [](uintptr_t address, size_t size) { std::memset(pointer(address), kMark, size); },
      nb::arg("address"), nb::arg("size"), "Fills memory with 0xba.");
  module.def("verify_transfer", &verify, nb::arg("first"), nb::arg("second"), nb::arg("size"),
             "Raises AssertionError where two pieces of memory differ.");
}
