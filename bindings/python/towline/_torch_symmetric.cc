// torch's symmetric memory on Towline's: the C++ classes that torch asks for. Compiled against the torch that is there, by
// torch_symmetric.py, since they are no stable interface of torch's.
//
// Memory comes and goes here, without Python, since tensors are freed on any thread and at exit. Meeting the other ranks,
// and what follows it, is done by an object in Python, which knows each meeting by a number. Needs no CUDA: what it does on
// a GPU itself are torch's own operations.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/extension.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <utility>
#include <vector>

namespace {

namespace py = pybind11;
namespace symmetric = c10d::symmetric_memory;

// As torch's CUDAPluggableAllocator takes them.
using Malloc = void* (*)(int64_t bytes, int device, void* stream);
using Free = void (*)(void* address, int64_t bytes, int device, void* stream);

// The numbers of meetings whose memory is in use.
struct InUse {
  std::mutex mutex;
  std::set<int64_t> numbers;
};
InUse& in_use() {
  static InUse& of_process = *new InUse;  // never destroyed: torch frees memory at exit
  return of_process;
}

size_t signal_pad_size() {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
  return size_t{32} * 72 * sizeof(uint32_t);  // as torch's own: channels, ranks
#else
  return symmetric::get_signal_pad_size();
#endif
}

// Calls Python. Its errors become torch's.
template <class Call>
auto ask(Call&& call) {
  const py::gil_scoped_acquire gil;
  std::string failure;
  try {
    return call();
  } catch (py::error_already_set& error) {
    failure = py::str(error.value());
  }
  TORCH_CHECK(false, failure);
}

class Memory final : public symmetric::SymmetricMemory {
 public:
  struct Meeting {
    int64_t number = 0;
    int rank = 0;
    int size = 0;
    std::vector<uint64_t> addresses;  // of each rank's memory: data, then signals
  };

  Memory(py::handle owner, Meeting meeting, size_t bytes, size_t signals_at, c10::Device device)
      : owner_(owner), meeting_(std::move(meeting)), bytes_(bytes), device_(device) {
    for (const uint64_t address : meeting_.addresses) {
      buffers_.push_back(reinterpret_cast<void*>(address));
      signals_.push_back(reinterpret_cast<void*>(address + signals_at));
    }
    buffers_there_ = there(buffers_);
    signals_there_ = there(signals_);
    const std::lock_guard lock(in_use().mutex);
    in_use().numbers.insert(meeting_.number);
  }
  ~Memory() override {
    const std::lock_guard lock(in_use().mutex);
    in_use().numbers.erase(meeting_.number);
  }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return signals_; }
  void** get_buffer_ptrs_dev() override { return static_cast<void**>(buffers_there_.data_ptr()); }
  void** get_signal_pad_ptrs_dev() override { return static_cast<void**>(signals_there_.data_ptr()); }
  size_t get_buffer_size() override { return bytes_; }
  // torch 2.9 asks this; later ones have a function of their own that is not virtual.
  // NOLINTNEXTLINE(modernize-use-override)
  size_t get_signal_pad_size() { return signal_pad_size(); }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }
  int get_rank() override { return meeting_.rank; }
  int get_world_size() override { return meeting_.size; }
  c10::Device get_device() override { return device_; }
  bool world_within_direct_access() override { return true; }

  void barrier(int channel, size_t timeout_ms) override {
    ask([&] { owner_.attr("barrier")(meeting_.number, channel, timeout_ms); });
  }
  void put_signal(int to, int channel, size_t timeout_ms) override {
    ask([&] { owner_.attr("put_signal")(meeting_.number, to, channel, timeout_ms); });
  }
  void wait_signal(int from, int channel, size_t timeout_ms) override {
    ask([&] { owner_.attr("wait_signal")(meeting_.number, from, channel, timeout_ms); });
  }

 private:
  // The pointers in memory of the device.
  at::Tensor there(const std::vector<void*>& pointers) const {
    std::vector<int64_t> values;
    for (void* const pointer : pointers) values.push_back(reinterpret_cast<int64_t>(pointer));
    return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device_);
  }

  const py::handle owner_;  // lives as long as the process
  const Meeting meeting_;
  const size_t bytes_;
  const c10::Device device_;
  std::vector<void*> buffers_;
  std::vector<void*> signals_;
  at::Tensor buffers_there_;
  at::Tensor signals_there_;
};

class Allocator final : public symmetric::SymmetricMemoryAllocator {
 public:
  Allocator(std::string name, c10::DeviceType type, Malloc malloc, Free free, py::handle owner)
      : name_(std::move(name)), type_(type), malloc_(malloc), free_(free), owner_(owner) {}

  void* alloc(size_t bytes, int index, const std::optional<std::string>& /*group*/) override {
    Block block;
    block.bytes = bytes;
    block.signals_at = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    block.whole = block.signals_at + signal_pad_size();
    block.device = device_of(index);
    block.index = std::max<int>(block.device.index(), 0);
    void* const address = malloc_(static_cast<int64_t>(block.whole), block.index, nullptr);
    TORCH_CHECK(address != nullptr, name_, ": no symmetric memory of ", block.whole, " bytes on ",
                block.device);
    clear(block, static_cast<uint8_t*>(address) + block.signals_at);
    const std::lock_guard lock(mutex_);
    blocks_[address] = std::move(block);
    return address;
  }

  void free(void* address) override {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(address);
      if (found == blocks_.end()) return;
      block = std::move(found->second);
      blocks_.erase(found);
    }
    free_(address, static_cast<int64_t>(block.whole), block.index, nullptr);
  }

  size_t get_alloc_size(void* address) override {
    const std::lock_guard lock(mutex_);
    return block_at(address).bytes;
  }

  // torch 2.12 asks this; 2.11 has no such function to override.
  // NOLINTNEXTLINE(modernize-use-override)
  bool has_allocation(void* address) {
    const std::lock_guard lock(mutex_);
    return blocks_.find(address) != blocks_.end();
  }

  c10::intrusive_ptr<symmetric::SymmetricMemory> rendezvous(
      void* address, const std::optional<std::string>& group) override {
    TORCH_CHECK(group.has_value(), name_, ": rendezvous() needs a group");
    Block block;
    {
      const std::lock_guard lock(mutex_);
      block = block_at(address);
    }
    if (const auto found = block.met.find(*group); found != block.met.end()) return found->second;
    const symmetric::GroupInfo& info = symmetric::get_group_info(*group);
    Memory::Meeting meeting;
    meeting.rank = info.rank;
    meeting.size = info.world_size;
    std::tie(meeting.number, meeting.addresses) = ask([&] {
      return owner_
          .attr("rendezvous")(*group, info.rank, info.world_size, info.store, block.index,
                              reinterpret_cast<uint64_t>(address), block.whole, block.bytes)
          .cast<std::pair<int64_t, std::vector<uint64_t>>>();
    });
    auto made =
        c10::make_intrusive<Memory>(owner_, std::move(meeting), block.bytes, block.signals_at, block.device);
    const std::lock_guard lock(mutex_);
    block_at(address).met[*group] = made;
    return made;
  }

  bool has_multicast_support(int /*index*/) override { return false; }
  c10::DeviceType supported_device_type() override { return type_; }
  std::string name() override { return name_; }

 private:
  static constexpr size_t kAlignment = 256;  // of signals

  struct Block {
    size_t bytes = 0;
    size_t signals_at = 0;
    size_t whole = 0;
    int index = 0;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    std::map<std::string, c10::intrusive_ptr<symmetric::SymmetricMemory>> met;  // by group
  };

  // torch gives -1 for "cuda" without a number: the current one.
  c10::Device device_of(int index) const {
    if (index >= 0) return {type_, static_cast<c10::DeviceIndex>(index)};
    if (type_ == c10::DeviceType::CPU) return c10::Device(type_);
    return c10::impl::VirtualGuardImpl(type_).getDevice();
  }

  Block& block_at(void* address) {
    const auto found = blocks_.find(address);
    TORCH_CHECK(found != blocks_.end(), name_,
                ": this memory was not allocated by torch.distributed._symmetric_memory.empty()");
    return found->second;
  }

  // Done when it returns: another rank may signal as soon as it has the memory.
  static void clear(const Block& block, void* signals) {
    const auto length = static_cast<int64_t>(block.whole - block.signals_at);
    at::from_blob(signals, {length}, at::TensorOptions().dtype(at::kByte).device(block.device)).zero_();
    if (block.device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl device(block.device.type());
    device.synchronizeStream(device.getStream(block.device));
  }

  const std::string name_;
  const c10::DeviceType type_;
  const Malloc malloc_;
  const Free free_;
  const py::handle owner_;
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // Makes a backend known to torch under the name. `owner` is never released.
  module.def("register", [](const std::string& name, const std::string& type, uint64_t malloc, uint64_t free,
                            py::object owner) {
    symmetric::register_availability(
        name, c10::make_intrusive<Allocator>(name, c10::Device(type).type(), reinterpret_cast<Malloc>(malloc),
                                             reinterpret_cast<Free>(free), owner.release()));
  });
  module.def("in_use", [] {
    const std::lock_guard lock(in_use().mutex);
    return std::vector<int64_t>(in_use().numbers.begin(), in_use().numbers.end());
  });
}
