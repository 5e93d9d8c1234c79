// The TransferEngine for C++20: RAII over fabric.h, which documents each call.
//
//   towline::Fabric engine{{"ofi:efa"}};
//   auto memory = engine.register_memory(pointer, bytes, {.writable = true});
//   auto peer = engine.connect(address);                                  // handed over, as the descriptor was
//   towline::FabricRemote remote{descriptor};
//   auto move = engine.write(peer, memory, remote, {.local_pages = mine, .remote_pages = theirs, .page_bytes = 4096},
//                            {.immediate = 7, .count = 64});
//   move.wait(10s);
#pragma once

#include <towline/fabric.h>

#include <functional>
#include <future>
#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

using FabricPeer = towline_fabric_peer_t;

struct FabricAccess {
  bool readable = false;
  bool writable = false;
  [[nodiscard]] constexpr uint32_t bits() const noexcept {
    return (readable ? uint32_t{TOWLINE_FABRIC_READABLE} : 0u) |
           (writable ? uint32_t{TOWLINE_FABRIC_WRITABLE} : 0u);
  }
};

struct FabricPages {
  std::span<const uint32_t> local_pages;  // valid until the transfer is fenced, as the other one
  std::span<const uint32_t> remote_pages;
  uint64_t page_bytes = 0;
  uint64_t local_stride = 0;  // 0: page_bytes
  uint64_t remote_stride = 0;
  uint64_t local_offset = 0;
  uint64_t remote_offset = 0;
};

struct FabricTransferOptions {
  uint32_t immediate = 0;
  uint32_t count = 0;
  std::string_view message = {};                      // with a null pointer: none
  std::optional<std::chrono::nanoseconds> timeout{};  // none: no limit
  std::function<void(Status)> done = {};  // with the outcome, once, on the engine's thread; must not block

  // A future of the outcome, through `done`. It is broken if the transfer is not accepted.
  [[nodiscard]] std::future<Status> completion() {
    auto promise = std::make_shared<std::promise<Status>>();
    done = [promise](Status status) { promise->set_value(status); };
    return promise->get_future();
  }
};

// One range of a scatter.
struct FabricPart {
  FabricPeer peer = 0;
  towline_fabric_memory_t* local = nullptr;
  uint64_t local_offset = 0;
  towline_fabric_remote_t* remote = nullptr;
  uint64_t remote_offset = 0;
  uint64_t bytes = 0;
};

struct FabricReceiveOptions {
  FabricPeer from = 0;                                // 0: any
  std::optional<std::chrono::nanoseconds> timeout{};  // none: no limit
  std::function<void(Status, FabricPeer, uint64_t bytes)> done = {};
};

// What an engine tells, on its thread; these must not block.
struct FabricEvents {
  std::function<void(FabricPeer, std::span<const uint8_t> message)> message = {};
  std::function<void(FabricPeer, std::string_view why)> lost = {};
  std::function<void(FabricPeer, uint32_t immediate, uint32_t count)> counted = {};
};

struct FabricOptions {
  std::string listen = {};  // of control messages; empty: 127.0.0.1, any port
  std::optional<int32_t> worker_cpu = {};
  std::optional<int32_t> watcher_cpu = {};
  FabricEvents events = {};
};

// Memory of a peer.
class FabricRemote {
 public:
  explicit FabricRemote(std::span<const uint8_t> descriptor) {
    towline_fabric_remote_t* remote = nullptr;
    detail::check(towline_fabric_import(descriptor.data(), descriptor.size(), &remote));
    handle_.reset(remote);
  }
  [[nodiscard]] towline_fabric_remote_t* get() const noexcept { return handle_.get(); }

 private:
  struct Release {
    void operator()(towline_fabric_remote_t* remote) const noexcept { towline_fabric_remote_release(remote); }
  };
  std::unique_ptr<towline_fabric_remote_t, Release> handle_;
};

// Memory of this side. It belongs to its engine.
class FabricMemory {
 public:
  explicit FabricMemory(towline_fabric_memory_t* memory) noexcept : handle_(memory) {}
  [[nodiscard]] std::vector<uint8_t> descriptor() const {
    size_t needed = 0;
    detail::check(towline_fabric_descriptor(handle_, nullptr, 0, &needed));
    std::vector<uint8_t> blob(needed);
    detail::check(towline_fabric_descriptor(handle_, blob.data(), blob.size(), &needed));
    return blob;
  }
  [[nodiscard]] towline_fabric_memory_t* get() const noexcept { return handle_; }

 private:
  towline_fabric_memory_t* handle_;
};

// Released with this object; a transfer under way goes on.
class FabricTransfer {
 public:
  FabricTransfer(towline_fabric_t* engine, towline_fabric_transfer_t number) noexcept
      : engine_(engine), number_(number) {}
  FabricTransfer(FabricTransfer&& other) noexcept
      : engine_(other.engine_), number_(std::exchange(other.number_, 0)) {}
  FabricTransfer& operator=(FabricTransfer&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~FabricTransfer() {
    if (number_ != 0) towline_fabric_release(engine_, number_);
  }

  [[nodiscard]] Status poll() const noexcept { return detail::status(towline_fabric_poll(engine_, number_)); }
  // kNotYet if the deadline passes before the outcome, or before the fence.
  [[nodiscard]] Status wait(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_fabric_wait(engine_, number_, deadline.remaining_ns()));
  }
  [[nodiscard]] Status wait_fenced(Deadline deadline = kForever) const noexcept {
    return detail::status(towline_fabric_wait_fenced(engine_, number_, deadline.remaining_ns()));
  }
  void cancel() const noexcept { towline_fabric_cancel(engine_, number_); }
  // About a receive that ended well. Throws Error.
  struct Received {
    FabricPeer peer = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] Received received() const {
    Received result;
    detail::check(towline_fabric_received(engine_, number_, &result.peer, &result.bytes));
    return result;
  }

 private:
  towline_fabric_t* engine_;
  towline_fabric_transfer_t number_;
};

// Functions that start a transfer throw Error when it is not accepted.
class Fabric {
 public:
  explicit Fabric(const std::vector<std::string>& rails, const std::string& listen = {})
      : Fabric(rails, FabricOptions{.listen = listen}) {}
  Fabric(const std::vector<std::string>& rails, FabricOptions given)
      : events_(std::make_unique<FabricEvents>(std::move(given.events))) {
    std::vector<const char*> names;
    for (const std::string& rail : rails) names.push_back(rail.c_str());
    towline_fabric_options_t options{};
    options.struct_size = sizeof options;
    options.rails = names.data();
    options.rail_count = names.size();
    options.listen = given.listen.empty() ? nullptr : given.listen.c_str();
    options.worker_cpu = given.worker_cpu ? &*given.worker_cpu : nullptr;
    options.watcher_cpu = given.watcher_cpu ? &*given.watcher_cpu : nullptr;
    options.context = events_.get();
    if (events_->message)
      options.on_message = [](void* context, FabricPeer peer, const void* message, size_t bytes) {
        static_cast<FabricEvents*>(context)->message(peer, {static_cast<const uint8_t*>(message), bytes});
      };
    if (events_->lost)
      options.on_lost = [](void* context, FabricPeer peer, const char* why) {
        static_cast<FabricEvents*>(context)->lost(peer, why);
      };
    if (events_->counted)
      options.on_counted = [](void* context, FabricPeer peer, uint32_t immediate, uint32_t count) {
        static_cast<FabricEvents*>(context)->counted(peer, immediate, count);
      };
    towline_fabric_t* engine = nullptr;
    detail::check(towline_fabric_create(&options, &engine));
    handle_.reset(engine);
  }

  [[nodiscard]] std::vector<uint8_t> address() const {
    size_t needed = 0;
    detail::check(towline_fabric_address(get(), nullptr, 0, &needed));
    std::vector<uint8_t> blob(needed);
    detail::check(towline_fabric_address(get(), blob.data(), blob.size(), &needed));
    return blob;
  }
  FabricPeer connect(std::span<const uint8_t> address) {
    FabricPeer peer = 0;
    detail::check(towline_fabric_connect(get(), address.data(), address.size(), &peer));
    return peer;
  }
  void disconnect(FabricPeer peer) { detail::check(towline_fabric_disconnect(get(), peer)); }

  FabricMemory register_memory(void* address, uint64_t bytes, FabricAccess access = {}) {
    towline_fabric_memory_t* memory = nullptr;
    detail::check(towline_fabric_register(get(), address, bytes, access.bits(), &memory));
    return FabricMemory{memory};
  }
  // Memory of a device. `fd` stays the caller's, and may be closed afterwards.
  FabricMemory register_dma_buf(void* address, uint64_t bytes, int fd, uint64_t offset = 0,
                                FabricAccess access = {}) {
    towline_fabric_memory_t* memory = nullptr;
    detail::check(towline_fabric_register_dma_buf(get(), address, bytes, access.bits(), fd, offset, &memory));
    return FabricMemory{memory};
  }
  // Memory of NVIDIA's GPU `gpu`, as CUDA numbers them in this process.
  FabricMemory register_gpu_memory(void* address, uint64_t bytes, uint32_t gpu, FabricAccess access = {}) {
    towline_fabric_memory_t* memory = nullptr;
    detail::check(towline_fabric_register_gpu(get(), address, bytes, access.bits(), gpu, &memory));
    return FabricMemory{memory};
  }
  void deregister(FabricMemory memory) { detail::check(towline_fabric_deregister(get(), memory.get())); }

  FabricTransfer write(FabricPeer peer, FabricMemory local, const FabricRemote& remote,
                       const FabricPages& pages, const FabricTransferOptions& options = {}) {
    return paged(TOWLINE_FABRIC_WRITE, peer, local, remote, pages, options);
  }
  FabricTransfer read(FabricPeer peer, FabricMemory local, const FabricRemote& remote,
                      const FabricPages& pages, const FabricTransferOptions& options = {}) {
    return paged(TOWLINE_FABRIC_READ, peer, local, remote, pages, options);
  }
  FabricTransfer write(FabricPeer peer, FabricMemory local, uint64_t local_offset, const FabricRemote& remote,
                       uint64_t remote_offset, uint64_t bytes, const FabricTransferOptions& options = {}) {
    return single(TOWLINE_FABRIC_WRITE, peer, local, local_offset, remote, remote_offset, bytes, options);
  }
  FabricTransfer read(FabricPeer peer, FabricMemory local, uint64_t local_offset, const FabricRemote& remote,
                      uint64_t remote_offset, uint64_t bytes, const FabricTransferOptions& options = {}) {
    return single(TOWLINE_FABRIC_READ, peer, local, local_offset, remote, remote_offset, bytes, options);
  }
  // A count or a message without bytes.
  FabricTransfer signal(FabricPeer peer, const FabricTransferOptions& options) {
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_signal(get(), peer, given, number);
    });
  }
  FabricTransfer scatter(std::span<const FabricPart> parts, const FabricTransferOptions& options = {}) {
    std::vector<towline_fabric_part_t> list;
    for (const FabricPart& part : parts)
      list.push_back({part.peer, part.local, part.local_offset, part.remote, part.remote_offset, part.bytes});
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_scatter(get(), list.data(), list.size(), given, number);
    });
  }

  uint32_t add_group(std::span<const FabricPeer> peers) {
    uint32_t group = 0;
    detail::check(towline_fabric_group_create(get(), peers.data(), peers.size(), &group));
    return group;
  }
  void remove_group(uint32_t group) { detail::check(towline_fabric_group_destroy(get(), group)); }
  FabricTransfer signal_group(uint32_t group, const FabricTransferOptions& options) {
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_group_signal(get(), group, given, number);
    });
  }
  FabricTransfer barrier(uint32_t group, uint32_t immediate, const FabricTransferOptions& options = {}) {
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_barrier(get(), group, immediate, given, number);
    });
  }

  FabricTransfer send(FabricPeer peer, FabricMemory local, uint64_t offset, uint64_t bytes,
                      const FabricTransferOptions& options = {}) {
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_send(get(), peer, local.get(), offset, bytes, given, number);
    });
  }
  FabricTransfer receive(FabricMemory local, uint64_t offset, uint64_t bytes,
                         const FabricReceiveOptions& options = {}) {
    towline_fabric_receive_options_t given{};
    given.struct_size = sizeof given;
    given.from = options.from;
    given.timeout_ns = detail::timeout_option(options.timeout);
    auto done = options.done ? std::make_unique<Received>(options.done) : nullptr;
    if (done != nullptr) {
      given.context = done.get();
      given.done = [](void* context, int32_t status, FabricPeer peer, uint64_t size) {
        const std::unique_ptr<Received> function{static_cast<Received*>(context)};
        (*function)(detail::status(status), peer, size);
      };
    }
    towline_fabric_transfer_t number = 0;
    detail::check(towline_fabric_receive(get(), local.get(), offset, bytes, &given, &number));
    (void)done.release();  // the callback owns it
    return {get(), number};
  }

  [[nodiscard]] uint64_t counter(uint32_t immediate) const {
    uint64_t value = 0;
    detail::check(towline_fabric_counter(get(), immediate, &value));
    return value;
  }
  [[nodiscard]] Status wait_counter(uint32_t immediate, uint64_t value, Deadline deadline = kForever) const {
    return detail::status(towline_fabric_counter_wait(get(), immediate, value, deadline.remaining_ns()));
  }
  [[nodiscard]] towline_fabric_t* get() const noexcept { return handle_.get(); }

 private:
  static towline_fabric_transfer_options_t c_options(const FabricTransferOptions& options) {
    towline_fabric_transfer_options_t given{};
    given.struct_size = sizeof given;
    given.immediate = options.immediate;
    given.count = options.count;
    given.message = options.message.data();
    given.message_bytes = options.message.size();
    given.timeout_ns = detail::timeout_option(options.timeout);
    return given;
  }
  using Done = std::function<void(Status)>;
  using Received = std::function<void(Status, FabricPeer, uint64_t)>;

  // begin(options, number) calls the C API.
  template <class Begin>
  FabricTransfer start(const FabricTransferOptions& options, Begin&& begin) {
    auto given = c_options(options);
    auto done = options.done ? std::make_unique<Done>(options.done) : nullptr;
    if (done != nullptr) {
      given.context = done.get();
      given.done = [](void* context, int32_t status) {
        const std::unique_ptr<Done> function{static_cast<Done*>(context)};
        (*function)(detail::status(status));
      };
    }
    towline_fabric_transfer_t number = 0;
    detail::check(begin(&given, &number));
    (void)done.release();  // the callback owns it
    return {get(), number};
  }
  FabricTransfer single(uint32_t operation, FabricPeer peer, FabricMemory local, uint64_t local_offset,
                        const FabricRemote& remote, uint64_t remote_offset, uint64_t bytes,
                        const FabricTransferOptions& options) {
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_single(get(), operation, peer, local.get(), local_offset, remote.get(),
                                   remote_offset, bytes, given, number);
    });
  }
  FabricTransfer paged(uint32_t operation, FabricPeer peer, FabricMemory local, const FabricRemote& remote,
                       const FabricPages& pages, const FabricTransferOptions& options) {
    if (pages.local_pages.size() != pages.remote_pages.size())
      throw Error{Status::kMismatch, "Fabric: there are not as many local pages as remote ones"};
    towline_fabric_pages_t list{};
    list.struct_size = sizeof list;
    list.local_pages = pages.local_pages.data();
    list.remote_pages = pages.remote_pages.data();
    list.count = pages.local_pages.size();
    list.page_bytes = pages.page_bytes;
    list.local_stride = pages.local_stride;
    list.remote_stride = pages.remote_stride;
    list.local_offset = pages.local_offset;
    list.remote_offset = pages.remote_offset;
    return start(options, [&](const auto* given, auto* number) {
      return towline_fabric_paged(get(), operation, peer, local.get(), remote.get(), &list, given, number);
    });
  }

  struct Destroy {
    void operator()(towline_fabric_t* engine) const noexcept { towline_fabric_destroy(engine); }
  };
  std::unique_ptr<FabricEvents> events_;  // outlives the engine
  std::unique_ptr<towline_fabric_t, Destroy> handle_;
};

// Host buffers of one size, registered once. Goes before its engine.
class FabricPool {
 public:
  FabricPool(Fabric& engine, uint64_t buffer_bytes, uint32_t buffers,
             FabricAccess access = {.writable = true}) {
    towline_fabric_pool_options_t options{};
    options.struct_size = sizeof options;
    options.buffer_bytes = buffer_bytes;
    options.buffers = buffers;
    options.access = access.bits();
    towline_fabric_pool_t* pool = nullptr;
    detail::check(towline_fabric_pool_create(engine.get(), &options, &pool));
    handle_.reset(pool);
  }
  // Nothing: all are taken.
  [[nodiscard]] std::optional<towline_fabric_buffer_t> take() noexcept {
    towline_fabric_buffer_t buffer{};
    if (towline_fabric_pool_take(handle_.get(), &buffer) != TOWLINE_OK) return std::nullopt;
    return buffer;
  }
  void give_back(const towline_fabric_buffer_t& buffer) {
    detail::check(towline_fabric_pool_give(handle_.get(), buffer.index));
  }

 private:
  struct Destroy {
    void operator()(towline_fabric_pool_t* pool) const noexcept { towline_fabric_pool_destroy(pool); }
  };
  std::unique_ptr<towline_fabric_pool_t, Destroy> handle_;
};

}  // namespace v0
}  // namespace towline
