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
#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

using FabricPeer = towline_fabric_peer_t;

struct FabricAccess {
  bool readable = false;
  bool writable = false;
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
  std::string_view message = {};  // with a null pointer: none
  std::chrono::nanoseconds timeout{0};
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
  [[nodiscard]] Status wait(std::chrono::nanoseconds timeout) const noexcept {
    return detail::status(towline_fabric_wait(engine_, number_, static_cast<uint64_t>(timeout.count())));
  }
  [[nodiscard]] Status wait_fenced(std::chrono::nanoseconds timeout) const noexcept {
    return detail::status(
        towline_fabric_wait_fenced(engine_, number_, static_cast<uint64_t>(timeout.count())));
  }
  void cancel() const noexcept { towline_fabric_cancel(engine_, number_); }

 private:
  towline_fabric_t* engine_;
  towline_fabric_transfer_t number_;
};

// Functions that start a transfer throw Error when it is not accepted.
class Fabric {
 public:
  // listen: of control messages; empty: 127.0.0.1, any port.
  explicit Fabric(const std::vector<std::string>& rails, const std::string& listen = {}) {
    std::vector<const char*> names;
    for (const std::string& rail : rails) names.push_back(rail.c_str());
    towline_fabric_options_t options{};
    options.struct_size = sizeof options;
    options.rails = names.data();
    options.rail_count = names.size();
    options.listen = listen.empty() ? nullptr : listen.c_str();
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
    const uint32_t bits = (access.readable ? uint32_t{TOWLINE_FABRIC_READABLE} : 0u) |
                          (access.writable ? uint32_t{TOWLINE_FABRIC_WRITABLE} : 0u);
    detail::check(towline_fabric_register(get(), address, bytes, bits, &memory));
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
  // A count or a message without bytes.
  FabricTransfer signal(FabricPeer peer, const FabricTransferOptions& options) {
    const auto given = c_options(options);
    towline_fabric_transfer_t number = 0;
    detail::check(towline_fabric_signal(get(), peer, &given, &number));
    return {get(), number};
  }

  [[nodiscard]] uint64_t counter(uint32_t immediate) const {
    uint64_t value = 0;
    detail::check(towline_fabric_counter(get(), immediate, &value));
    return value;
  }
  [[nodiscard]] Status wait_counter(uint32_t immediate, uint64_t value,
                                    std::chrono::nanoseconds timeout) const {
    return detail::status(
        towline_fabric_counter_wait(get(), immediate, value, static_cast<uint64_t>(timeout.count())));
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
    given.timeout_ns = static_cast<uint64_t>(options.timeout.count());
    return given;
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
    const auto given = c_options(options);
    towline_fabric_transfer_t number = 0;
    detail::check(
        towline_fabric_paged(get(), operation, peer, local.get(), remote.get(), &list, &given, &number));
    return {get(), number};
  }

  struct Destroy {
    void operator()(towline_fabric_t* engine) const noexcept { towline_fabric_destroy(engine); }
  };
  std::unique_ptr<towline_fabric_t, Destroy> handle_;
};

}  // namespace v0
}  // namespace towline
