// Towline for C++20: RAII over the C API, header-only, so that only C crosses the library's border.
//
//   towline::Agent agent{"prefill-0"};
//   auto cache = agent.register_memory(towline::dram(address, bytes));
//   auto peer = agent.connect("10.0.0.7:7777");
//   auto mine = agent.block_list(my_layers);             // span<const Blocks>
//   auto theirs = peer.block_list(their_layers);
//   auto move = agent.copy(mine[my_pages], theirs[their_pages], {.notice = "req"});  // plan.hpp
//   towline::Status outcome = move.wait(5s);
//
// Two paths, two ways to fail. The control path (everything that makes, registers, connects or describes)
// throws towline::Error. The data path (post, poll, wait, cancel, send, receive, add, pull) returns Status,
// never throws, and is an inlined call of the C function.
//
// Ownership. Every type that owns something moves and does not copy; a moved-from object is empty: it may
// only be destroyed or assigned to. Any thread may call anything. Objects may outlive their agent: they then
// answer Status::kClosed.
#pragma once

#include <towline/gpu.h>
#include <towline/status.h>
#include <towline/storage.h>
#include <towline/towline.h>
#include <towline/values.hpp>  // IWYU pragma: export

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace towline {
// Versioned: a program may also link the library statically, whose classes have the same names.
inline namespace v0 {

// Handles

namespace detail {

inline void check(int32_t status) {
  if (status >= 0) return;
  const char* message = towline_last_error();
  throw Error{Status{status}, *message != 0 ? message : towline_status_text(status)};
}

// An options struct of the C API with defaults.
template <class Options>
[[nodiscard]] constexpr Options defaults() noexcept {
  Options options{};
  options.struct_size = sizeof(Options);
  return options;
}

[[nodiscard]] constexpr Status status(int32_t code) noexcept { return Status{code}; }

inline const char* or_null(const std::string& text) noexcept { return text.empty() ? nullptr : text.c_str(); }

// Reads text with the "capacity, needed" convention; repeats the call if it grew in between.
template <class Buffer, class Read>
[[nodiscard]] Buffer read_sized(Read read) {
  Buffer buffer;
  size_t needed = 0;
  check(read(nullptr, size_t{0}, &needed));
  while (needed > buffer.size()) {
    buffer.resize(needed);
    check(read(buffer.data(), buffer.size(), &needed));
  }
  buffer.resize(needed);
  return buffer;
}

template <class Read>
[[nodiscard]] std::string read_text(Read read) {
  auto text = read_sized<std::string>(read);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

template <class T, auto Destroy>
struct Deleter {
  void operator()(T* handle) const noexcept { Destroy(handle); }
};

template <class T, auto Destroy>
using Handle = std::unique_ptr<T, Deleter<T, Destroy>>;

// Ends a region: with an owner at once, as the owner lives until the memory is not used any more. Without one the memory
// may go next, so that it waits for what uses it; that is the only destructor which does.
struct RegionEnd {
  using Owner = std::shared_ptr<const void>;
  void operator()(towline_region_t* region) noexcept {
    if (owner == nullptr) {
      (void)towline_region_deregister(region, Deadline{kDestructorTimeout}.remaining_ns());
    } else {
      (void)towline_region_release(
          region, [](void* held) { delete static_cast<Owner*>(held); }, owner.release());
    }
  }
  std::unique_ptr<Owner> owner;
};

// An agent's handle, which others share. The agent is closed when the one that owns it ends.
using SharedAgent = std::shared_ptr<towline_agent_t>;
class AgentHandle {
 public:
  AgentHandle() noexcept = default;
  explicit AgentHandle(towline_agent_t* agent) : shared_(agent, towline_agent_destroy) {}
  AgentHandle(AgentHandle&&) noexcept = default;
  AgentHandle& operator=(AgentHandle&& other) noexcept {
    if (this != &other) close(), shared_ = std::move(other.shared_);
    return *this;
  }
  ~AgentHandle() { close(); }
  void close() noexcept {
    if (shared_ == nullptr || towline_agent_close(shared_.get()) != TOWLINE_BUSY) return;
    // In a callback on one of the agent's own threads, which can't join itself.
    try {
      std::thread([agent = shared_] { (void)towline_agent_close(agent.get()); }).detach();
    } catch (const std::exception&) {  // the last one that shares the handle ends it
    }
  }
  [[nodiscard]] towline_agent_t* get() const noexcept { return shared_.get(); }
  [[nodiscard]] const SharedAgent& shared() const noexcept { return shared_; }

 private:
  SharedAgent shared_;
};

}  // namespace detail

// Memory that peers on this host can map: shared, sealed, zeroed, page-aligned. Freed by its destructor;
// destroy the regions in it first.
class Memory {
 public:
  explicit Memory(uint64_t bytes, const MemoryOptions& options = {}) {
    towline_memory_t* memory = nullptr;
    detail::check(towline_memory_allocate(bytes, options.huge_pages ? TOWLINE_ALLOCATE_HUGE : 0, &memory));
    handle_.reset(memory);
  }

  [[nodiscard]] std::byte* data() const noexcept {
    return static_cast<std::byte*>(towline_memory_address(handle_.get()));
  }
  [[nodiscard]] uint64_t size() const noexcept { return towline_memory_bytes(handle_.get()); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
  [[nodiscard]] towline_memory_t* native() const noexcept { return handle_.get(); }

 private:
  detail::Handle<towline_memory_t, towline_memory_free> handle_;
};

[[nodiscard]] inline MemoryView dram(void* address, uint64_t bytes) noexcept {
  return {.address = address, .bytes = bytes};
}
[[nodiscard]] inline MemoryView dram(const Memory& memory) noexcept {
  return dram(memory.data(), memory.size());
}
[[nodiscard]] inline MemoryView dram(std::span<std::byte> bytes) noexcept {
  return dram(bytes.data(), bytes.size());
}

class View;
using RegionInfo = towline_region_info_t;

// Registered memory. The destructor deregisters it. Of memory that was registered with its owner it waits for nothing: the
// owner lives until the memory is not used any more. Else it tells peers and waits for work in flight, up to 30 s.
class Region {
 public:
  // The key by which peers name it.
  [[nodiscard]] uint64_t key() const noexcept { return towline_region_key(handle_.get()); }
  [[nodiscard]] RegionInfo info() const {
    RegionInfo info{};
    detail::check(towline_region_info(handle_.get(), &info, sizeof info));
    return info;
  }
  // One block at `offset` of it, for a list; repeat() makes more.
  [[nodiscard]] Blocks blocks(uint64_t offset, uint64_t length) const {
    const RegionInfo its = info();
    return Blocks::at(its.address + offset, length, Kind{its.kind}, its.device);
  }
  // Of storage: makes written data durable; a replacement replaces the old file. Throws Error.
  void commit(Deadline deadline = std::chrono::seconds{30}) const {
    detail::check(towline_storage_commit(handle_.get(), deadline.remaining_ns()));
  }

  // Deregisters now. kOk: the memory may be reused, and this object is empty. kNotYet: a peer has not
  // detached, and last_error() names it; do not reuse the memory, and repeat the call.
  Status deregister(Deadline deadline = kForever) noexcept {
    const Status status = detail::status(towline_region_deregister(handle_.get(), deadline.remaining_ns()));
    if (status == Status::kOk) {
      (void)handle_.release();
      handle_.get_deleter().owner.reset();
    }
    return status;
  }
  explicit Region(towline_region_t* region) noexcept : handle_(region) {}  // takes it over
  // The same of one that was registered with this name, unless it is empty.
  Region(towline_region_t* region, std::string name) : handle_(region) {
    if (!name.empty()) keep_view(std::move(name));
  }
  void forget() noexcept { (void)handle_.release(); }  // the handle is gone
  // Its elements, as the layout says that it was registered with: layout.hpp.
  [[nodiscard]] View view() const;
  template <class Index>
  [[nodiscard]] View operator[](Index&& index) const;
  [[nodiscard]] towline_region_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  void keep_view(std::string name);
  std::unique_ptr<towline_region_t, detail::RegionEnd> handle_;
  std::string name_;
  std::shared_ptr<const View> view_;  // of one with a name; ends before the region
};

struct PickedBlocks;

// Validated, resolved blocks of this agent or of a peer. Block indices count through its entries.
class BlockList {
 public:
  [[nodiscard]] PickedBlocks operator[](Picks picks) const& noexcept;
  [[nodiscard]] PickedBlocks operator[](Picks picks) &&;
  [[nodiscard]] uint64_t blocks() const noexcept { return towline_block_list_blocks(handle_.get()); }
  [[nodiscard]] uint64_t bytes() const noexcept { return towline_block_list_bytes(handle_.get()); }
  [[nodiscard]] towline_block_list_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  friend class Peer;
  friend class View;
  explicit BlockList(towline_block_list_t* list) noexcept : handle_(list) {}
  BlockList(towline_agent_t* agent, towline_peer_t* peer, std::span<const Blocks> blocks) {
    towline_block_list_t* list = nullptr;
    detail::check(
        towline_block_list_create(agent, peer, blocks.data(), sizeof(Blocks), blocks.size(), &list));
    handle_.reset(list);
  }
  // From plain blocks: addresses[i], lengths[i].
  BlockList(towline_agent_t* agent, towline_peer_t* peer, Kind kind, uint64_t device,
            std::span<const uint64_t> addresses, std::span<const uint64_t> lengths) {
    if (addresses.size() != lengths.size()) {
      throw Error{Status::kMismatch, "block_list: " + std::to_string(addresses.size()) + " addresses, but " +
                                         std::to_string(lengths.size()) + " lengths"};
    }
    towline_block_list_t* list = nullptr;
    detail::check(towline_block_list_create_flat(agent, peer, static_cast<uint32_t>(kind), addresses.data(),
                                                 sizeof(uint64_t), lengths.data(), sizeof(uint64_t), device,
                                                 addresses.size(), &list));
    handle_.reset(list);
  }
  detail::Handle<towline_block_list_t, towline_block_list_destroy> handle_;
};

// Some blocks of a list, in order: list[picks]. The list must live as long as this, except that a temporary one is kept.
struct PickedBlocks {
  PickedBlocks(const BlockList& all_of) noexcept : list(&all_of) {}  // NOLINT: implicit on purpose
  PickedBlocks(BlockList&& all_of)                                   // NOLINT: the same
      : kept(std::make_shared<const BlockList>(std::move(all_of))), list(kept.get()) {}
  PickedBlocks(const BlockList& of, Picks some) noexcept : list(&of), picks(std::move(some)) {}
  PickedBlocks(BlockList&& of, Picks some) : PickedBlocks(std::move(of)) { picks = std::move(some); }

  std::shared_ptr<const BlockList> kept;  // null: nothing was temporary
  const BlockList* list;
  Picks picks = all;
};

namespace detail {
inline towline_picks_t picks(const Picks& picks) noexcept {
  return picks.get() == nullptr ? towline_picks_t{} : *picks.get();
}
}  // namespace detail

inline PickedBlocks BlockList::operator[](Picks picks) const& noexcept { return {*this, std::move(picks)}; }
inline PickedBlocks BlockList::operator[](Picks picks) && { return {std::move(*this), std::move(picks)}; }

// Another agent as seen from here. A reference: after its destruction the agent still knows the peer.
class Peer {
 public:
  [[nodiscard]] std::string_view name() const noexcept { return towline_peer_name(handle_.get()); }
  [[nodiscard]] std::string_view incarnation() const noexcept {
    return towline_peer_incarnation(handle_.get());
  }
  [[nodiscard]] Health health() const noexcept { return Health{towline_peer_health(handle_.get())}; }

  // Its known regions, in the order of registration; refresh() fetches new ones.
  [[nodiscard]] std::vector<RegionInfo> regions() const {
    std::vector<RegionInfo> regions;
    size_t count = 0;
    detail::check(towline_peer_regions(handle_.get(), nullptr, sizeof(RegionInfo), &count));
    while (count > regions.size()) {
      regions.resize(count);
      detail::check(towline_peer_regions(handle_.get(), regions.data(), sizeof(RegionInfo), &count));
    }
    regions.resize(count);
    return regions;
  }

  // Describes its region with this name, and the name of one of regions(), "" without one.
  [[nodiscard]] RegionInfo region_info(const std::string& name) const {
    RegionInfo info{};
    detail::check(towline_peer_region_find(handle_.get(), name.c_str(), &info, sizeof info));
    return info;
  }
  [[nodiscard]] std::string region_name(uint64_t key) const {
    std::array<char, TOWLINE_MAX_REGION_NAME_BYTES + 1> name{};
    detail::check(towline_peer_region_name(handle_.get(), key, name.data(), name.size()));
    return name.data();
  }
  // The elements of its region with this name: layout.hpp. Throws Error(kNotFound) with the names there are.
  [[nodiscard]] View region(const std::string& name) const;

  // Fetches the peer's current metadata. Blocks until it has arrived.
  void refresh(Deadline deadline = std::chrono::seconds{30}) {
    detail::check(towline_peer_refresh(handle_.get(), deadline.remaining_ns()));
  }

  // Lists over the peer's registered memory.
  [[nodiscard]] BlockList block_list(std::span<const Blocks> blocks) const {
    return BlockList{agent_.get(), handle_.get(), blocks};
  }
  [[nodiscard]] BlockList block_list(const Blocks& blocks) const { return block_list({&blocks, 1}); }
  [[nodiscard]] BlockList block_list(std::span<const uint64_t> addresses, std::span<const uint64_t> lengths,
                                     Kind kind = Kind::kDram, uint64_t device = 0) const {
    return BlockList{agent_.get(), handle_.get(), kind, device, addresses, lengths};
  }

  // Sends a notice by itself. kAgain: no credit now.
  [[nodiscard]] Status send(BytesView notice) const noexcept {
    return detail::status(towline_notice_send(handle_.get(), notice.data(), notice.size()));
  }
  // Adds to the peer's counter with this key.
  [[nodiscard]] Status add(uint64_t counter_key, uint64_t amount) const noexcept {
    return detail::status(towline_counter_add(handle_.get(), counter_key, amount));
  }

  // Makes the agent forget the peer; transfers in flight to it end with kCancelled.
  void remove() { detail::check(towline_peer_remove(handle_.get())), (void)handle_.release(); }
  Peer(detail::SharedAgent agent, towline_peer_t* peer) noexcept
      : agent_(std::move(agent)), handle_(peer) {}  // takes it over
  [[nodiscard]] towline_peer_t* native() const noexcept { return handle_.get(); }

 private:
  detail::SharedAgent agent_;
  detail::Handle<towline_peer_t, towline_peer_release> handle_;
};

// Transfers

// Beside the picks, which are fixed as well.
struct TransferOptions {
  KeptBytes notice{};        // delivered to the peer after the data; empty: none
  uint64_t counter_key = 0;  // the peer's counter to add to after the data; 0: none
  uint64_t counter_add = 0;
  std::optional<std::chrono::nanoseconds> timeout{};  // from each post; none: the agent's default
  std::string backend{};                              // force one by name; empty: the router chooses
  uint32_t workers = 0;                               // to split the work over; 0: one
  bool queue_completion = false;                      // queue a completion at the agent: Agent::pull
  void* user_data = nullptr;                          // returned with completions and callbacks
  towline_callback_t callback = nullptr;
};

using Replays = towline_replays_t;

// Addresses for code on the GPU that moves a transfer's bytes; see towline_transfer_view.
struct GpuView {
  std::vector<uint64_t> from;  // of each block
  std::vector<uint64_t> to;    // the same
};

// The result of a transfer's last post.
struct Result : towline_result_t {
  [[nodiscard]] Status outcome() const noexcept { return Status{status}; }
  [[nodiscard]] std::chrono::nanoseconds duration() const noexcept {
    return std::chrono::nanoseconds{ended_at_ns - posted_at_ns};
  }
  // The ranges that are kept, at most eight; failed_ranges says how many there were.
  [[nodiscard]] std::span<const towline_failed_range_t> failures() const noexcept {
    constexpr uint32_t kKept = std::extent_v<decltype(failed)>;
    return {failed, failed_ranges < kKept ? failed_ranges : kKept};
  }
};

// A move whose picks are fixed; post it any number of times, once at a time. The destructor cancels a post in flight and
// waits for nothing: the memory is in use until the local fence, which the end of a Region awaits.
class Transfer {
 public:
  // Starts it; allocates nothing. kOk: already done. kInProgress: exactly one outcome follows. kAgain: not
  // accepted, because credit or space is missing. Other errors: not accepted.
  [[nodiscard]] Status post() const noexcept { return detail::status(towline_transfer_post(handle_.get())); }
  // kInProgress or the outcome. Helps to make progress, as towline_post_poll does.
  [[nodiscard]] Status poll() const noexcept { return detail::status(towline_transfer_poll(handle_.get())); }
  // Waits for the outcome; kNotYet if the deadline passes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_transfer_wait(handle_.get(), deadline.remaining_ns()));
  }
  // Waits until no byte can land any more on the given sides; kNotYet if one still can. kUnsupported: see towline.h.
  [[nodiscard]] Status wait_fenced(Fence fence = Fence::kBoth, Deadline deadline = kForever) const noexcept {
    return detail::status(
        towline_transfer_wait_fenced(handle_.get(), static_cast<uint32_t>(fence), deadline.remaining_ns()));
  }
  // Ends it with kCancelled if it has no outcome yet. The fence follows; wait for it before reusing memory.
  Status cancel() const noexcept { return detail::status(towline_transfer_cancel(handle_.get())); }
  // Replaces the notice of later posts; kBusy while in flight.
  [[nodiscard]] Status set_notice(BytesView notice) const noexcept {
    return detail::status(towline_transfer_set_notice(handle_.get(), notice.data(), notice.size()));
  }

  // In the order of a GPU's stream, and in graphs: gpu.h. kInProgress: posted. kOk: captured in the graph that the stream
  // is recording.
  [[nodiscard]] Status post_on(void* stream) const noexcept {
    return detail::status(towline_transfer_post_on(handle_.get(), stream));
  }
  // What comes next in the stream comes after the last post.
  [[nodiscard]] Status wait_on(void* stream) const noexcept {
    return detail::status(towline_transfer_wait_on(handle_.get(), stream));
  }
  // Throws Error; kAgain: the connection is being made.
  [[nodiscard]] GpuView view(size_t blocks) const {
    GpuView view{std::vector<uint64_t>(blocks), std::vector<uint64_t>(blocks)};
    detail::check(towline_transfer_view(handle_.get(), view.from.data(), view.to.data(), blocks));
    return view;
  }
  // Of captured posts. Throws Error.
  [[nodiscard]] Replays replays() const {
    auto replays = detail::defaults<Replays>();
    detail::check(towline_transfer_replays(handle_.get(), &replays));
    return replays;
  }

  [[nodiscard]] Result result() const {
    Result result{detail::defaults<towline_result_t>()};
    detail::check(towline_transfer_result(handle_.get(), &result));
    return result;
  }
  // The backend that moves the bytes, its path, the reason, and the reasons against others: JSON.
  [[nodiscard]] std::string route() const {
    return detail::read_text([this](char* json, size_t capacity, size_t* needed) {
      return towline_transfer_route(handle_.get(), json, capacity, needed);
    });
  }
  // Cancels, waits for the local fence, frees. kNotYet: not freed, call again.
  Status destroy(Deadline deadline = kForever) noexcept {
    const Status status = detail::status(towline_transfer_destroy(handle_.get(), deadline.remaining_ns()));
    if (status == Status::kOk) (void)handle_.release();
    return status;
  }
  [[nodiscard]] towline_transfer_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  explicit Transfer(towline_transfer_t* transfer) noexcept : handle_(transfer) {}
  detail::Handle<towline_transfer_t, towline_transfer_release> handle_;
};

// An ended transfer that asked for queue_completion.
struct Completion : towline_completion_t {
  Completion() noexcept : towline_completion_t{} {}
  [[nodiscard]] Status outcome() const noexcept { return Status{status}; }
};
static_assert(sizeof(Completion) == sizeof(towline_completion_t), "arrays of Completion are handed to C");

// Notices and counters

// A message that arrived. Its contents are valid as long as the object. Its destructor returns the sender's
// credit, so copy what you need and destroy it.
class Notice {
 public:
  Notice() noexcept = default;
  Notice(Notice&& other) noexcept : agent_(std::move(other.agent_)), notice_(other.notice_) {}
  Notice& operator=(Notice&& other) noexcept {
    if (this != &other) {
      release();
      agent_ = std::move(other.agent_);
      notice_ = other.notice_;
    }
    return *this;
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;
  ~Notice() { release(); }

  [[nodiscard]] std::string_view peer_name() const noexcept { return notice_.peer_name; }
  [[nodiscard]] std::string_view peer_incarnation() const noexcept { return notice_.peer_incarnation; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(notice_.data), notice_.bytes};
  }
  [[nodiscard]] std::string_view text() const noexcept {
    return {static_cast<const char*>(notice_.data), notice_.bytes};
  }
  [[nodiscard]] uint64_t tag() const noexcept { return notice_.tag; }  // 0: none
  [[nodiscard]] explicit operator bool() const noexcept { return agent_ != nullptr; }
  void release() noexcept {
    if (agent_ != nullptr) towline_notice_release(std::exchange(agent_, nullptr).get(), &notice_);
  }

 private:
  friend class Agent;
  detail::SharedAgent agent_;
  towline_notice_t notice_{};
};

// A 64-bit number of this agent that peers add to. The application sends them its key.
class Counter {
 public:
  [[nodiscard]] uint64_t key() const noexcept { return towline_counter_key(handle_.get()); }
  [[nodiscard]] uint64_t value() const noexcept { return towline_counter_value(handle_.get()); }
  // Waits until the value is at least `threshold`; kNotYet if the deadline passes first.
  [[nodiscard]] Status wait(uint64_t threshold, Deadline deadline = kForever) const noexcept {
    return detail::status(towline_counter_wait(handle_.get(), threshold, deadline.remaining_ns()));
  }
  [[nodiscard]] towline_counter_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Agent;
  explicit Counter(towline_counter_t* counter) noexcept : handle_(counter) {}
  detail::Handle<towline_counter_t, towline_counter_destroy> handle_;
};

class Plan;
class Post;
class Group;
namespace detail {
class KeptPlans;
std::shared_ptr<KeptPlans> keep_plans(const SharedAgent& agent);
}  // namespace detail
class Directory;
class Queue;
struct PlanOptions;
struct PostOptions;
struct GroupOptions;
struct StorageOptions;
struct StorageEntry;
using StorageInfo = towline_storage_info_t;

// Agent

// One participant: a name, an incarnation, registered memory, backends, workers that make progress. The destructor
// ends every transfer, says goodbye to peers and joins the agent's threads.
class Agent {
 public:
  // `name`: 1 to 255 bytes; it need not be unique, the incarnation is.
  explicit Agent(const std::string& name, const AgentOptions& options = {}) {
    auto native = detail::defaults<towline_agent_options_t>();
    native.progress = static_cast<uint32_t>(options.progress);
    native.workers = options.workers;
    native.listen = detail::or_null(options.listen);
    native.advertise = detail::or_null(options.advertise);
    native.backends = detail::or_null(options.backends);
    native.config = detail::or_null(options.config);
    native.default_timeout_ns = detail::nanoseconds(options.default_timeout);
    towline_agent_t* agent = nullptr;
    if (name.find('\0') != std::string::npos) {
      throw Error{Status::kInvalidArgument, "Agent: the name contains a NUL byte"};
    }
    detail::check(towline_agent_create(name.c_str(), &native, &agent));
    handle_ = detail::AgentHandle{agent};
    plans_ = detail::keep_plans(handle_.shared());
  }
  // Does the destructor's work early: calls of any thread that use the agent or what was made from it answer kClosed
  // from then on. In a callback on one of the agent's own threads another thread does it, soon after.
  void close() noexcept { handle_.close(); }

  [[nodiscard]] std::string_view name() const noexcept { return towline_agent_name(handle_.get()); }
  // 32 hexadecimal digits, new for every agent made.
  [[nodiscard]] std::string_view incarnation() const noexcept {
    return towline_agent_incarnation(handle_.get());
  }
  // The address for peers, "10.0.0.7:7777"; empty if the agent does not listen.
  [[nodiscard]] std::string address() const {
    return detail::read_text([this](char* text, size_t capacity, size_t* needed) {
      return towline_agent_address(handle_.get(), text, capacity, needed);
    });
  }
  // One more backend, by its plugin's file or name; existing regions are registered with it.
  void add_backend(const char* file) const { detail::check(towline_agent_add_backend(handle_.get(), file)); }
  // Backends with traits and reasons, regions, peers, topology: JSON.
  [[nodiscard]] std::string info() const {
    return detail::read_text([this](char* json, size_t capacity, size_t* needed) {
      return towline_agent_info(handle_.get(), json, capacity, needed);
    });
  }
  // Counters per peer, backend and direction: JSON.
  [[nodiscard]] std::string metrics() const {
    return detail::read_text([this](char* json, size_t capacity, size_t* needed) {
      return towline_agent_metrics(handle_.get(), json, capacity, needed);
    });
  }
  // Registers memory, which must stay valid until the region ends.
  [[nodiscard]] Region register_memory(const MemoryView& memory, const RegionOptions& options = {}) const {
    auto native = detail::defaults<towline_region_options_t>();
    native.access = static_cast<uint32_t>(options.access);
    native.flags = (options.guarded ? uint32_t{TOWLINE_REGION_GUARDED} : 0) |
                   (options.share ? uint32_t{TOWLINE_REGION_SHARE} : 0);
    native.kind = static_cast<uint32_t>(memory.kind);
    native.device = memory.device;
    native.name = detail::or_null(options.name);
    native.layout = options.layout ? &*options.layout : nullptr;
    towline_region_t* region = nullptr;
    detail::check(towline_region_register(handle_.get(), memory.address, memory.bytes, &native, &region));
    return Region{region, options.name};
  }
  // The same; `owner` lives until nothing uses the memory any more, and the region's destructor does not wait.
  [[nodiscard]] Region register_memory(std::shared_ptr<const void> owner, const MemoryView& memory,
                                       const RegionOptions& options = {}) const {
    auto held = std::make_unique<detail::RegionEnd::Owner>(std::move(owner));
    Region registered = register_memory(memory, options);
    registered.handle_.get_deleter().owner = std::move(held);
    return registered;
  }
  [[nodiscard]] Region register_memory(std::shared_ptr<Memory> memory,
                                       const RegionOptions& options = {}) const {
    const MemoryView all_of_it = dram(*memory);
    return register_memory(std::shared_ptr<const void>{std::move(memory)}, all_of_it, options);
  }

  // Files and objects: storage.hpp. Opens and registers the one at the URI ("file:/path", "s3://bucket/key"). Throws Error.
  // Blocks on the file system or the server.
  [[nodiscard]] Region register_storage(const std::string& uri) const;
  [[nodiscard]] Region register_storage(const std::string& uri, const StorageOptions& options) const;
  // The same for an open descriptor, which is duplicated.
  [[nodiscard]] Region register_storage(int fd) const;
  [[nodiscard]] Region register_storage(int fd, const StorageOptions& options) const;
  // Describes a file or object; `exists` is 0 if it does not exist.
  [[nodiscard]] StorageInfo query_storage(const std::string& uri) const;
  // Everything whose URI has this prefix ("s3://bucket/model/"), in order; at most `limit`. Throws Error.
  [[nodiscard]] std::vector<StorageEntry> list_storage(const std::string& prefix,
                                                       size_t limit = SIZE_MAX) const;

  // This agent's metadata as a blob: with all its regions, or only some.
  [[nodiscard]] std::vector<std::byte> metadata(std::span<const Region* const> regions = {}) const {
    std::vector<towline_region_t*> native;
    native.reserve(regions.size());
    for (const Region* region : regions) native.push_back(region->native());
    return detail::read_sized<std::vector<std::byte>>([&](void* blob, size_t capacity, size_t* needed) {
      return towline_agent_metadata(handle_.get(), native.data(), native.size(), blob, capacity, needed);
    });
  }
  // Adds a peer from a blob, or adds the blob's regions to a known peer.
  [[nodiscard]] Peer add_peer(BytesView blob) const {
    towline_peer_t* peer = nullptr;
    detail::check(towline_peer_add(handle_.get(), blob.data(), blob.size(), &peer));
    return Peer{handle_.shared(), peer};
  }
  // Meets the agent at "host:port", "[v6]:port", "unix:/path", "unix:@name" or "etcd://host:port/name"; blocks.
  [[nodiscard]] Peer connect(const std::string& address, Deadline deadline = std::chrono::seconds{30}) const {
    towline_peer_t* peer = nullptr;
    detail::check(towline_peer_connect(handle_.get(), address.c_str(), deadline.remaining_ns(), &peer));
    return Peer{handle_.shared(), peer};
  }
  // By name or incarnation, including unsolicited peers. Throws kAlreadyExists if several have the name.
  [[nodiscard]] std::optional<Peer> find_peer(const std::string& name) const {
    towline_peer_t* peer = nullptr;
    const int32_t status = towline_peer_find(handle_.get(), name.c_str(), &peer);
    if (status == TOWLINE_NOT_FOUND) return std::nullopt;
    detail::check(status);
    return Peer{handle_.shared(), peer};
  }

  // Lists over this agent's own registered memory.
  [[nodiscard]] BlockList block_list(std::span<const Blocks> blocks) const {
    return BlockList{handle_.get(), nullptr, blocks};
  }
  [[nodiscard]] BlockList block_list(const Blocks& blocks) const { return block_list({&blocks, 1}); }
  [[nodiscard]] BlockList block_list(std::span<const uint64_t> addresses, std::span<const uint64_t> lengths,
                                     Kind kind = Kind::kDram, uint64_t device = 0) const {
    return BlockList{handle_.get(), nullptr, kind, device, addresses, lengths};
  }

  // A move that is posted again and again with the picks that it has now: from[pages] to to[pages], pairwise in order.
  [[nodiscard]] Transfer transfer(const PickedBlocks& from, const PickedBlocks& to,
                                  const TransferOptions& options = {}) const {
    auto native = detail::defaults<towline_transfer_options_t>();
    native.from = detail::picks(from.picks);
    native.to = detail::picks(to.picks);
    native.notice = options.notice.data();
    native.notice_bytes = options.notice.size();
    native.counter_key = options.counter_key;
    native.counter_add = options.counter_add;
    native.timeout_ns = detail::timeout_option(options.timeout);
    native.backend = detail::or_null(options.backend);
    native.workers = options.workers;
    native.queue_completion = options.queue_completion ? 1 : 0;
    native.user_data = options.user_data;
    native.callback = options.callback;
    towline_transfer_t* transfer = nullptr;
    detail::check(
        towline_transfer_create(handle_.get(), from.list->native(), to.list->native(), &native, &transfer));
    return Transfer{transfer};
  }

  // Plans, posts and groups: plan.hpp. Bytes move from `from` to `to`, one of them of a peer, or both of this agent.
  [[nodiscard]] Plan plan(const BlockList& from, const BlockList& to) const;
  [[nodiscard]] Plan plan(const BlockList& from, const BlockList& to, const PlanOptions& options) const;
  // Starts one post of a plan of its own: plan() costs less where it is used again.
  [[nodiscard]] Post copy(const PickedBlocks& from, const PickedBlocks& to) const;
  [[nodiscard]] Post copy(const PickedBlocks& from, const PickedBlocks& to, PostOptions options) const;
  // The same by layout. The plans of the last pairs of regions are kept for later copies, and so is a post's run
  // when its handle is dropped. Throws Error(kMismatch) for views of other shapes.
  [[nodiscard]] Post copy(const View& from, const View& to) const;
  [[nodiscard]] Post copy(const View& from, const View& to, PostOptions options) const;
  [[nodiscard]] Group group() const;
  [[nodiscard]] Group group(const GroupOptions& options) const;

  [[nodiscard]] Counter counter(uint64_t initial = 0) const {
    towline_counter_t* counter = nullptr;
    detail::check(towline_counter_create(handle_.get(), initial, &counter));
    return Counter{counter};
  }

  // One pass of every worker; the number of events handled, or a negative status. Needed only with
  // Progress::kCaller.
  int32_t progress() const noexcept { return towline_agent_progress(handle_.get()); }
  // Takes the next notice, kAgain without one. Releases the previous contents of `notice`. Helps progress.
  [[nodiscard]] Status receive(Notice& notice) const noexcept {
    notice.release();
    const Status status =
        detail::status(towline_notice_receive(handle_.get(), &notice.notice_, sizeof notice.notice_));
    if (status == Status::kOk) notice.agent_ = handle_.shared();
    return status;
  }
  // Pulls ended transfers that asked for queue_completion: how many, or a negative status. Never blocks.
  [[nodiscard]] int32_t pull(std::span<Completion> completions) const noexcept {
    return towline_completions_pull(handle_.get(), completions.data(), completions.size(),
                                    sizeof(Completion));
  }
  // Sleeps until a notice or queued completion is available; kNotYet if the deadline passes first.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_agent_wait(handle_.get(), deadline.remaining_ns()));
  }
  // Readable while notices or completions wait. Owned by the agent.
  [[nodiscard]] int event_fd() const {
    int fd = -1;
    detail::check(towline_agent_event_fd(handle_.get(), &fd));
    return fd;
  }
  [[nodiscard]] towline_agent_t* native() const noexcept { return handle_.get(); }

 private:
  friend class Directory;
  friend class Queue;
  [[nodiscard]] Region open_storage(const char* uri, int fd, const StorageOptions& options) const;

  detail::AgentHandle handle_;
  std::shared_ptr<detail::KeptPlans> plans_;  // of copy()
};

}  // namespace v0
}  // namespace towline

#include <towline/plan.hpp>     // IWYU pragma: export
#include <towline/storage.hpp>  // IWYU pragma: export
