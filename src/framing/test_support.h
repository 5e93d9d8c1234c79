// For tests and measurements of the engine: a host that records callbacks, plans from plain segments, a lane
// over a descriptor, two joined connections. Not part of the library.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sync/spin.h"
#include "framing/connection.h"
#include "framing/ring_lane.h"
#include "towline/towline.h"

namespace towline::framing::testing {

struct FakeRegion {
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
  uint32_t access = TOWLINE_ACCESS_ALL;
  uint32_t pins = 0;
  bool stale = false;
  bool gpu = false;  // its addresses are no pointers: kGpuBit is set in them
  uint64_t device = 0;
};

inline constexpr uint64_t kGpuBit = 1ull << 62;  // of no canonical address

// One side's core. Region keys are 1, 2, ... in the order of add().
class FakeHost {
 public:
  FakeHost() {
    table_.struct_size = sizeof table_;
    table_.context = this;
    table_.now_ns = [](void* c) { return self(c).clock.now_ns(); };
    table_.log = [](void*, int32_t, const char*) {};
    table_.fail = [](void*, const char*) {};
    table_.wake = [](void* c, uint32_t) { ++self(c).wakes; };
    table_.urgent_waits = [](void* c, uint32_t) { return self(c).urgent_waits ? 1u : 0u; };
    table_.served = [](void*, void*, uint32_t, uint64_t) {};
    table_.heard = [](void*, void*) {};
    table_.granted = [](void*, void*, uint64_t) {};
    table_.refused = [](void*, uint32_t, void*, int32_t) {};
    table_.complete = [](void* c, uint64_t cookie, const towline_part_result* result) {
      self(c).completed(cookie, *result);
    };
    table_.message = [](void* c, void*, const void* data, size_t bytes) {
      if (self(c).on_message)
        self(c).on_message({static_cast<const char*>(data), bytes});
      else
        ++self(c).message_count;
    };
    table_.connection_event = [](void* c, void*, uint32_t event, int32_t status, const char* text) {
      self(c).events.push_back({event, static_cast<Status>(status), text});
    };
    table_.pin = [](void* c, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
                    void** pin) {
      return static_cast<int32_t>(self(c).pin(key, address, bytes, access, pointer, pin));
    };
    table_.landing = [](void*, const towline_landing_table_v1**, towline_backend**) -> int32_t {
      return TOWLINE_NOT_FOUND;
    };
    table_.pin_landing = [](void* c, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access,
                            uint64_t* device, void** pin) {
      void* pointer = nullptr;
      const Status status = self(c).pin(key, address, bytes, access, &pointer, pin, true);
      if (status == Status::kOk) *device = static_cast<FakeRegion*>(*pin)->device;
      return static_cast<int32_t>(status);
    };
    table_.unpin = [](void* c, void* pin) {
      --static_cast<FakeRegion*>(pin)->pins;
      ++self(c).unpins;
    };
  }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  uint64_t add(uint8_t* data, uint64_t bytes, uint32_t access = TOWLINE_ACCESS_ALL) {
    regions.push_back(std::make_unique<FakeRegion>(FakeRegion{data, bytes, access, 0, false}));
    return regions.size();
  }
  uint64_t add_gpu(uint8_t* data, uint64_t bytes, uint64_t device = 0) {
    const uint64_t key = add(data, bytes);
    regions.back()->gpu = true;
    regions.back()->device = device;
    return key;
  }
  plugin::Host host() const { return plugin::Host{&table_}; }
  uint32_t pins_held() const {
    uint32_t count = 0;
    for (const auto& region : regions) count += region->pins;
    return count;
  }
  bool ended(uint64_t cookie) const { return results.contains(cookie); }
  const towline_part_result& result(uint64_t cookie) const { return results.at(cookie); }
  Status status(uint64_t cookie) const { return static_cast<Status>(results.at(cookie).status); }

  struct Event {
    uint32_t event;
    Status status;
    std::string text;
  };
  VirtualClock clock;
  std::vector<std::unique_ptr<FakeRegion>> regions;
  std::map<uint64_t, towline_part_result> results;
  uint64_t completions = 0;
  uint64_t twice = 0;  // completions of a cookie that had one
  bool keep_results = true;
  bool urgent_waits = false;
  std::function<void(std::string_view)> on_message;
  std::function<void(uint64_t, const towline_part_result&)> on_complete;
  uint64_t message_count = 0;
  std::vector<Event> events;
  uint32_t wakes = 0;
  uint64_t unpins = 0;

 private:
  static FakeHost& self(void* context) { return *static_cast<FakeHost*>(context); }

  void completed(uint64_t cookie, const towline_part_result& result) {
    ++completions;
    if (keep_results && !results.emplace(cookie, result).second) ++twice;
    if (on_complete) on_complete(cookie, result);
  }

  Status pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer, void** pin,
             bool gpu = false) {
    if (key == 0 || key > regions.size()) return Status::kStale;
    FakeRegion& region = *regions[key - 1];
    const uint64_t base = reinterpret_cast<uint64_t>(region.data) | (region.gpu ? kGpuBit : 0);
    if (region.stale) return Status::kStale;
    if (address < base || bytes > region.bytes || address - base > region.bytes - bytes)
      return Status::kOutOfRange;
    if ((region.access & access) != access || region.gpu != gpu) return Status::kPermissionDenied;
    ++region.pins;
    *pointer = reinterpret_cast<void*>(address);
    *pin = &region;
    return Status::kOk;
  }

  towline_host_v1_t table_{};
};

// A plan of flat blocks, one run each.
class FakePlan {
 public:
  explicit FakePlan(uint64_t remote_key, uint32_t access = TOWLINE_ACCESS_ALL) {
    local_regions_ = {{0, 0, UINT64_MAX, 0, TOWLINE_MEMORY_DRAM, TOWLINE_ACCESS_ALL, 0, 0}};
    remote_regions_ = {{remote_key, 0, UINT64_MAX, 0, TOWLINE_MEMORY_DRAM, access, 0, 0}};
  }
  // Sets the kind of memory of region 0 on either side.
  void set_kinds(uint32_t local, uint32_t remote) {
    local_regions_[0].kind = local;
    remote_regions_[0].kind = remote;
  }
  // Region 1 and so on of one side.
  void add_local_region(uint32_t kind, uint64_t device) {
    local_regions_.push_back({0, 0, UINT64_MAX, device, kind, TOWLINE_ACCESS_ALL, 0, 0});
  }
  void add_remote_region(uint64_t key, uint32_t kind, uint64_t device) {
    remote_regions_.push_back({key, 0, UINT64_MAX, device, kind, TOWLINE_ACCESS_ALL, 0, 0});
  }
  FakePlan(const FakePlan&) = delete;
  FakePlan& operator=(const FakePlan&) = delete;

  void add(const uint8_t* local, const uint8_t* remote, uint32_t length, uint32_t local_region = 0,
           uint32_t remote_region = 0) {
    runs_.push_back({static_cast<uint32_t>(local_.size()), static_cast<uint32_t>(local_.size()), 1, 0});
    const auto bit = [](const towline_region_ref& region) {
      return region.kind == TOWLINE_MEMORY_VRAM ? kGpuBit : 0;
    };
    local_.push_back(
        {reinterpret_cast<uint64_t>(local) | bit(local_regions_[local_region]), length, local_region});
    remote_.push_back(
        {reinterpret_cast<uint64_t>(remote) | bit(remote_regions_[remote_region]), length, remote_region});
    bytes_ += length;
    equal_ = equal_ && length == local_.front().length;
  }

  // Call after all blocks are added.
  const towline_plan* plan() {
    const uint64_t length = equal_ && !local_.empty() ? local_.front().length : 0;
    const uint64_t blocks = local_.size();
    local_list_ = {
        sizeof local_list_,   nullptr, local_.data(), blocks, blocks, length, 1, local_regions_.data(),
        local_regions_.size()};
    remote_list_ = {
        sizeof remote_list_,   nullptr, remote_.data(), blocks, blocks, length, 1, remote_regions_.data(),
        remote_regions_.size()};
    plan_ = {sizeof plan_, &local_list_, &remote_list_, runs_.data(), runs_.size(), 1, 1,
             blocks,       bytes_,       length};
    return &plan_;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<towline_region_ref> local_regions_;
  std::vector<towline_region_ref> remote_regions_;
  std::vector<towline_flat_block> local_;
  std::vector<towline_flat_block> remote_;
  std::vector<towline_run> runs_;
  towline_list local_list_{};
  towline_list remote_list_{};
  towline_plan plan_{};
  uint64_t bytes_ = 0;
  bool equal_ = true;
};

// Over a nonblocking stream socket, which it owns. Large payload is aligned, as on the transports' sockets.
class FdLane final : public Lane {
 public:
  explicit FdLane(int fd, uint32_t frame_bytes = 1u << 20) : fd_(fd), frame_bytes_(frame_bytes) {}
  ~FdLane() override { ::close(fd_); }
  IoResult write(std::span<const iovec> pieces) noexcept override {
    ++writes;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const IoResult result = outcome(::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    written += result.bytes;
    return result;
  }
  IoResult read(std::span<const iovec> pieces) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const IoResult result = outcome(::recvmsg(fd_, &message, MSG_DONTWAIT));
    if (result.bytes != 0) ++reads;
    return result;
  }
  bool arm(bool) noexcept override { return true; }
  void disarm() noexcept override {}
  void close() noexcept override {
    closed_ = true;
    ::shutdown(fd_, SHUT_RDWR);
  }
  std::string describe() const override { return "socket"; }
  Traits traits() const noexcept override {
    Traits traits;
    traits.frame_bytes = frame_bytes_;
    traits.payload_alignment = kPayloadAlignment;
    return traits;
  }
  static constexpr uint32_t kPayloadAlignment = 4096;

  // Of what was sent and not read. The system rounds up.
  void set_buffer(int bytes) noexcept { ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); }

  uint64_t writes = 0;   // calls
  uint64_t reads = 0;    // that brought something
  uint64_t written = 0;  // bytes

 private:
  IoResult outcome(ssize_t moved) const noexcept {
    if (closed_ || moved == 0) return IoResult::closed();
    if (moved > 0) return IoResult::moved(static_cast<std::size_t>(moved));
    if (errno == EAGAIN) return IoResult::again();
    return IoResult::error(Status::kPeerLost, errno);
  }

  int fd_;
  uint32_t frame_bytes_;
  bool closed_ = false;
};

using LanePair = std::pair<std::unique_ptr<Lane>, std::unique_ptr<Lane>>;

inline LanePair socket_lanes(uint32_t frame_bytes = 1u << 20) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  return {std::make_unique<FdLane>(fds[0], frame_bytes), std::make_unique<FdLane>(fds[1], frame_bytes)};
}

// Their buffers take megabytes, as buffers that the system tunes do.
inline LanePair deep_socket_lanes() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  for (const int fd : fds) {
    const int bytes = 8 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
  return {std::make_unique<FdLane>(fds[0]), std::make_unique<FdLane>(fds[1])};
}

// Two rings on the heap, which outlive the lanes made of them.
class RingPair {
 public:
  explicit RingPair(std::size_t capacity)
      : capacity_(capacity), bytes_((2 * ring_bytes(capacity) + kNoSharingBytes - 1) / kNoSharingBytes) {
    memory_ = std::make_unique<Line[]>(bytes_);
    std::memset(static_cast<void*>(memory_.get()), 0, bytes_ * sizeof(Line));
  }
  RingView forth() { return ring_view(memory_.get(), capacity_); }
  RingView back() {
    return ring_view(reinterpret_cast<uint8_t*>(memory_.get()) + ring_bytes(capacity_), capacity_);
  }
  LanePair lanes(RingLane::WakeHook wake_second = {}, RingLane::WakeHook wake_first = {}) {
    return {std::make_unique<RingLane>(forth(), back(), wake_second, "ring"),
            std::make_unique<RingLane>(back(), forth(), wake_first, "ring")};
  }

 private:
  struct alignas(kNoSharingBytes) Line {
    uint8_t bytes[kNoSharingBytes];
  };
  std::size_t capacity_;
  std::size_t bytes_;
  std::unique_ptr<Line[]> memory_;
};

// The part of a transport and the core around one connection.
struct Side {
  explicit Side(const ConnectionOptions& options = {}) : connection(host.host(), this, options) {}

  towline_prepared* prepare(const towline_plan* plan, uint32_t op) {
    const towline_prepare_args args = {sizeof args, plan, nullptr, nullptr, op, 0};
    towline_prepared* prepared = nullptr;
    if (connection.prepare(args, &prepared) != 0) std::abort();
    prepared_.emplace_back(prepared);
    return prepared;
  }
  Status submit(towline_prepared* prepared, uint64_t cookie, uint64_t begin, uint64_t end,
                std::string_view message = {}, uint32_t flags = 0) {
    const towline_submit_args args = {sizeof args,    cookie, begin, end,    message.data(),
                                      message.size(), flags,  0,     nullptr};
    return static_cast<Status>(Connection::submit(prepared, args));
  }
  uint32_t progress() { return connection.progress(host.clock.now_ns()); }

  FakeHost host;
  Connection connection;

 private:
  struct Unprepare {
    void operator()(towline_prepared* prepared) const { Connection::unprepare(prepared); }
  };
  std::vector<std::unique_ptr<towline_prepared, Unprepare>> prepared_;
};

}  // namespace towline::framing::testing
