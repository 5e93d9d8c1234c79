// Reads memory and indices from Python objects: buffers, NumPy, torch, DLPack. Imports none of these
// packages.
#pragma once

#include <optional>
#include <vector>

#include "core.h"

namespace towline::python {

// An array's memory, without a copy. Keeps the source object alive and in place.
struct Array {
  nb::object owner;
  Py_buffer buffer{};   // obj null: the memory came another way
  nb::object exported;  // keeps a DLPack capsule's tensor, which may be a copy without another owner
  uint64_t address = 0;
  uint64_t item_bytes = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in bytes
  char code = 0;                 // 'i' and 'u' integers, 'b' booleans, 0 anything else
  bool read_only = false;
  bool objects = false;  // it holds references to Python objects
  uint32_t kind = TOWLINE_MEMORY_DRAM;
  uint64_t device = 0;

  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { PyBuffer_Release(&buffer); }

  // False if `object` is not an array. Throws if it is an array that can't be used.
  bool take(nb::handle object);
  [[nodiscard]] uint64_t items() const noexcept;
  // Whether the dimensions from `first` on lie one after another.
  [[nodiscard]] bool contiguous_from(size_t first) const noexcept;
  // Whether it covers its memory without holes, in any order of dimensions.
  [[nodiscard]] bool dense() const;

 private:
  bool take_any(nb::handle object);
  bool take_buffer(nb::handle object);
  bool take_torch(nb::handle object);
  bool take_interface(nb::handle object);
  bool take_cuda_interface(nb::handle object);
  bool read_interface(const nb::dict& interface);
  bool take_dlpack(nb::handle object);
  void set_contiguous_strides();
};

// The picked blocks: None (all), a slice or range, one index, a list of integers, or an array of 4- or 8-byte
// integers, which is not copied. Holds the array.
class Picks {
 public:
  Picks(nb::handle object, uint64_t blocks, const char* side);
  // Null for all.
  [[nodiscard]] const towline_picks_t* native() const noexcept { return all_ ? nullptr : &native_; }
  [[nodiscard]] uint64_t count() const noexcept { return native_.count; }
  [[nodiscard]] bool copied() const noexcept { return !copy_.empty(); }

 private:
  void take_range(int64_t start, int64_t step, uint64_t count);
  void take_sequence(nb::handle sequence);
  void take_array();
  void use_copy();

  const char* side_;
  bool all_ = false;
  towline_picks_t native_{};
  Array array_;
  std::vector<uint64_t> copy_;
};

// An array's pages: one block for each index of the dimensions up to and including page_dim; None is 0 (blocks.cc).
towline_blocks_t pages_of(const Array& array, nb::handle page_dim);

}  // namespace towline::python
