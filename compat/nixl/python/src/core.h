// Shared declarations of the extension module nixl._bindings. It binds nixlAgent and its lists, and uses only
// their headers.
//
// Handles of requests and prepared lists are numbers in Python: an index into the agent's table and the
// serial number of the handle. So a foreign or released handle is an error and never a bad pointer. The
// table, and every field of the classes here, is used only with the GIL held; calls of nixlAgent that can
// wait or copy much are made without it.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>
#include <towline_nixl.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/python/src/gil.h"
#include "recycler.h"

namespace nb = nanobind;

namespace towline::nixl::python {

// ---- errors.cc

// Throws the exception of `status`, an error, with the reason as its text.
[[noreturn]] void raise(nixl_status_t status, std::string_view why);
// The same with the message that this thread's last call left.
[[noreturn]] void raise(nixl_status_t status);
// Returns a status that is not an error; throws otherwise.
inline nixl_status_t check(nixl_status_t status) {
  if (status < 0) raise(status);
  return status;
}
void bind_errors(nb::module_& module);

// ---- the GIL

using towline::python::WithoutGil;

// Lets other threads run while this one waits for them.
void give_way() noexcept;

// ---- arrays.cc

// A NumPy array of 32- or 64-bit integers, read in place.
struct ArrayView {
  const char* data = nullptr;
  int dimensions = 0;
  const Py_ssize_t* shape = nullptr;
  const Py_ssize_t* strides = nullptr;  // bytes
  uint32_t item_bytes = 0;              // 4 or 8
  bool has_sign = false;
};
// False for anything else, including an array with another item type. Takes a tenth of the time of the buffer
// protocol, for which NumPy describes the array as text.
bool view_array(PyObject* object, ArrayView& view) noexcept;

// ---- arguments.cc

// Text for NIXL: a str (as UTF-8) or any bytes.
struct Text {
  std::string value;
};
bool read_text(PyObject* object, std::string& value);

// An N x `columns` array of 64-bit integers: anything with the buffer protocol, NumPy first. Rows that are
// not one after another are copied. Holds the array.
class Table {
 public:
  // Throws ValueError for another shape or type of item.
  Table(nb::handle array, size_t columns);
  ~Table() { PyBuffer_Release(&view_); }  // does nothing if no view was taken
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  [[nodiscard]] const uint64_t* data() const noexcept { return data_; }
  [[nodiscard]] size_t count() const noexcept { return count_; }

 private:
  nb::object array_;
  Py_buffer view_{};
  std::vector<uint64_t> copy_;
  const uint64_t* data_ = nullptr;
  size_t count_ = 0;
};

// True if `object` has the buffer protocol and is not text.
bool is_buffer(nb::handle object) noexcept;

// Indices into a prepared list: a one-dimensional array of 4- or 8-byte integers, which is not copied unless
// it has gaps, a range, or a sequence of integers. Holds the array.
class Picks {
 public:
  // Throws TypeError or ValueError for other objects, nixlInvalidParamError for negative indices.
  Picks(nb::handle object, const char* side);
  ~Picks() { PyBuffer_Release(&view_); }
  Picks(const Picks&) = delete;
  Picks& operator=(const Picks&) = delete;
  [[nodiscard]] const Indices& native() const noexcept { return native_; }

 private:
  bool take_plain_array(nb::handle object);
  void take_array(nb::handle object);
  void take_range(nb::handle object);
  void take_sequence(nb::handle object);
  void use_copy();

  const char* side_;
  nb::object array_;
  Py_buffer view_{};
  std::vector<uint64_t> copy_;
  Indices native_;
};

// An unsigned 64-bit integer; throws TypeError and OverflowError.
uint64_t read_integer(PyObject* object);

// ---- lists.cc

// A list that calls use without the GIL while another thread may edit it. A call holds a copy or the result
// of list(). Copies share the descriptors; the thread that edits a shared list gets its own copy first.
template <class List>
class Shared {
 public:
  explicit Shared(List&& from) : list_(std::make_shared<List>(std::move(from))) {}
  [[nodiscard]] nixl_mem_t type() const noexcept { return list_->getType(); }
  [[nodiscard]] int count() const noexcept { return list_->descCount(); }
  [[nodiscard]] const std::shared_ptr<List>& list() const noexcept { return list_; }
  List& edit() {
    if (list_.use_count() > 1) list_ = std::make_shared<List>(*list_);
    return *list_;
  }

 private:
  std::shared_ptr<List> list_;
};
using RegList = Shared<nixl_reg_dlist_t>;
using RemoteList = Shared<nixl_remote_dlist_t>;

// The same for transfers. Descriptors of an array mostly have one length and device. They are kept as
// addresses only, which takes a third of the memory, until the list is needed.
class XferList {
 public:
  explicit XferList(nixl_xfer_dlist_t&& from);
  // From an N x 3 array; from a list or tuple of tuples.
  static XferList of_array(nixl_mem_t type, nb::handle array);
  static XferList of_tuples(nixl_mem_t type, nb::handle sequence);
  [[nodiscard]] nixl_mem_t type() const noexcept { return alike_ ? alike_->type : list_->getType(); }
  [[nodiscard]] int count() const noexcept;
  [[nodiscard]] Rows rows() const noexcept;
  [[nodiscard]] const std::shared_ptr<nixl_xfer_dlist_t>& list() const;
  nixl_xfer_dlist_t& edit();

 private:
  struct Alike {
    nixl_mem_t type;
    uint64_t length;
    uint64_t device;
    size_t count;
    Room<uint64_t> addresses;

    Alike(nixl_mem_t type, const uint64_t* row, size_t count, Room<uint64_t>&& addresses) noexcept
        : type(type), length(row[1]), device(row[2]), count(count), addresses(std::move(addresses)) {}
    Alike(const Alike&) = delete;
    Alike& operator=(const Alike&) = delete;
    ~Alike();
  };
  XferList() = default;

  mutable std::shared_ptr<const Alike> alike_;  // null: the list exists
  mutable std::shared_ptr<nixl_xfer_dlist_t> list_;
};
void bind_lists(nb::module_& module);

// ---- agent.cc

struct Request {
  nixlXferReqH* native = nullptr;
  uint32_t users = 0;  // calls in progress without the GIL
  bool quick = false;  // so few bytes that starting it takes no longer than giving the GIL up
  bool ended = true;   // its last run's outcome was seen, or it was never started
};

struct PreparedList {
  nixlDlistH* native = nullptr;
  uint32_t users = 0;
  uint64_t largest = 0;  // bytes of its largest descriptor, or anything beyond what is quick
};

// Counts the handles of all tables, so that a handle of one table is invalid in another. Used with the GIL
// held.
inline uint32_t handles_given_out = 0;

// The table behind handles. Entries keep their addresses until they are erased.
template <class T>
class HandleTable {
 public:
  // Allocates sometimes; existing entries do not move.
  uintptr_t add(T&& entry) {
    if (first_free_ == kNone) {
      slots_.emplace_back();
      first_free_ = static_cast<uint32_t>(slots_.size() - 1);
    }
    const uint32_t place = first_free_;
    Slot& slot = slots_[place];
    first_free_ = slot.next_free;
    slot.taken = true;
    slot.generation = ++handles_given_out;
    slot.entry = std::move(entry);
    return uintptr_t{slot.generation} << 32 | (place + 1);
  }
  // Null if the handle is unknown or hidden.
  T* find(uintptr_t handle) noexcept {
    Slot* slot = slot_of(handle);
    return slot != nullptr && !slot->hidden ? &slot->entry : nullptr;
  }
  // Hides an entry that is about to be erased: find() does not return it until it is shown again.
  void hide(uintptr_t handle, bool hidden = true) noexcept {
    if (Slot* slot = slot_of(handle)) slot->hidden = hidden;
  }
  void erase(uintptr_t handle) noexcept {
    Slot* slot = slot_of(handle);
    if (slot == nullptr) return;
    slot->taken = slot->hidden = false;
    slot->next_free = std::exchange(first_free_, static_cast<uint32_t>(handle) - 1);
  }
  void clear() noexcept {
    slots_.clear();
    first_free_ = kNone;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    T entry;
    uint32_t generation = 0;
    uint32_t next_free = kNone;
    bool taken = false;
    bool hidden = false;
  };
  Slot* slot_of(uintptr_t handle) noexcept {
    const auto place = static_cast<uint32_t>(handle) - 1;
    if (place >= slots_.size()) return nullptr;
    Slot& slot = slots_[place];
    return slot.taken && slot.generation == handle >> 32 ? &slot : nullptr;
  }

  std::deque<Slot> slots_;
  uint32_t first_free_ = kNone;
};

// Keeps a request or list in place for a call that is made without the GIL.
template <class T>
class Use {
 public:
  explicit Use(T& used) : used_(used) { ++used_.users; }
  ~Use() { --used_.users; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  T* operator->() const noexcept { return &used_; }

 private:
  T& used_;
};

// A sender's name, as it came and as Python's.
struct SenderName {
  std::string text;
  nb::object name;
};

struct Agent {
  std::unique_ptr<nixlAgent> native;
  HandleTable<Request> requests;
  HandleTable<PreparedList> lists;
  SenderName last_sender;  // of the last notification
  uint32_t calls = 0;      // in progress without the GIL; close() waits for them
  bool closing = false;
  pid_t pid = 0;
  Agent* previous = nullptr;  // in the list of open agents
  Agent* next = nullptr;

  Agent(const std::string& name, const nixlAgentConfig& config);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();
  // Throws nixlNotAllowedError after close().
  nixlAgent& use() const;
  void close();
  // Throw nixlInvalidParamError for numbers that are not given out, or freed.
  Request& request(uintptr_t handle);
  PreparedList& list(uintptr_t handle);
};

// One call of the agent without the GIL, during which it can't be closed.
class Call {
 public:
  explicit Call(Agent& agent) : counted_(agent) {}
  [[nodiscard]] nixlAgent& native() const noexcept { return counted_.native; }

 private:
  struct Counted {
    explicit Counted(Agent& agent) : agent(agent), native(agent.use()) { ++agent.calls; }
    ~Counted() { --agent.calls; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    Agent& agent;
    nixlAgent& native;
  };
  Counted counted_;  // counts with the GIL held: made before and destroyed after
  WithoutGil without_gil_;
};

// Calls `function` for the agent without the GIL and returns its result.
template <class Function>
auto run(Agent& agent, Function function) {
  const Call call(agent);
  return function(call.native());
}

// The same, but if `quick`, with the GIL held: the call takes less time than releasing and taking the GIL.
template <class Function>
auto run(Agent& agent, bool quick, Function function) {
  return quick ? function(agent.use()) : run(agent, std::move(function));
}

using Handles = std::vector<uintptr_t>;

inline nixl_opt_args_t options_of(const Handles& backends) {
  nixl_opt_args_t options;
  for (const uintptr_t backend : backends)
    options.backends.push_back(reinterpret_cast<nixlBackendH*>(backend));
  return options;
}

void bind_agent(nb::module_& module);

// ---- memory.cc, requests.cc, messages.cc

void bind_memory(nb::class_<Agent>& agent);    // and backends
void bind_requests(nb::class_<Agent>& agent);  // and prepared lists
void bind_messages(nb::class_<Agent>& agent);  // notifications and metadata

// Those of the hot calls, for quick.cc and handles.cc as well.
uintptr_t prepare_list(Agent& self, const Text& agent_name, const XferList& descs, const Handles& backends);
uintptr_t make(Agent& self, nixl_xfer_op_t operation, uintptr_t local, nb::handle local_indices,
               uintptr_t remote, nb::handle remote_indices, const Text& notification,
               const Handles& backends);
uintptr_t create(Agent& self, nixl_xfer_op_t operation, const XferList& local, const XferList& remote,
                 const Text& remote_agent, const Text& notification, const Handles& backends);
nixl_status_t start(Agent& self, uintptr_t handle, const Text& notification);
nixl_status_t look(Agent& self, uintptr_t handle);
nb::object word(nixl_status_t status);
nixl_status_t release(Agent& self, uintptr_t handle);
nixl_status_t release_list(Agent& self, uintptr_t handle);
nb::dict new_notifications(Agent& self);

// ---- handles.cc

// nixl_xfer_handle and nixl_prepped_dlist_handle: numbers that free themselves.
struct HandleObject {
  PyObject_HEAD         //
      PyObject* agent;  // the binding's nixlAgent, or a program's replacement for it
  unsigned long long value;
  char released;
};
PyTypeObject* transfer_handle_type() noexcept;
PyTypeObject* list_handle_type() noexcept;
nb::object make_handle(PyTypeObject* type, nb::handle agent, uintptr_t value);
void bind_handles(nb::module_& module);

// ---- quick.cc

// The binding's agent, or null for another object.
Agent* native_agent(PyObject* object) noexcept;
// Sets Python's error from the C++ exception that is being handled.
void set_python_error() noexcept;
void bind_quick(nb::module_& module);

}  // namespace towline::nixl::python

namespace nanobind::detail {

template <>
struct type_caster<towline::nixl::python::Text> {
  NB_TYPE_CASTER(towline::nixl::python::Text, const_name("str | bytes"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    return towline::nixl::python::read_text(source.ptr(), value.value);
  }
  static handle from_cpp(const towline::nixl::python::Text& text, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeUTF8(text.value.data(), static_cast<Py_ssize_t>(text.value.size()),
                                "surrogateescape");
  }
};

}  // namespace nanobind::detail
