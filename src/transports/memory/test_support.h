// For the tests of backends that link agents of one host: a small stand-in for the core, and plans from plain
// blocks. Not part of the library.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "base/os/host_identity.h"
#include "base/sync/wake.h"
#include "towline/plugin/v1.h"
#include "towline/towline.h"

namespace towline::transport_test {

// A connection as the core sees it; `this` is the peer cookie.
struct TestLink {
  towline_connection* connection = nullptr;
  bool up = false;
  bool down = false;
  Status status = Status::kOk;
  std::string text;
  std::string peer_name;
  std::deque<std::string> messages;
  std::set<towline_import*> imports;  // not given back yet
};

struct TestRegion {
  towline_region_ref ref = {};
  towline_registration* registration = nullptr;
  uint32_t pins = 0;
};

// One agent of a single worker, driven by the test, with one backend.
class TestAgent {
 public:
  using Settings = std::map<std::string, std::string>;

  TestAgent(const towline_plugin_v1_t* plugin, std::string name, Settings settings = {},
            bool virtual_time = false)
      : plugin_(plugin), settings_(std::move(settings)), name_(std::move(name)), virtual_time_(virtual_time) {
    fill_identity();
    fill_services();
    memory_ = static_cast<const towline_memory_table_v1*>(plugin->query_table("memory", 1));
    connection_ = static_cast<const towline_connection_table_v1*>(plugin->query_table("connection", 1));
    data_ = static_cast<const towline_data_table_v1*>(plugin->query_table("data", 1));
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{EPOLLIN, {.fd = wake_.fd()}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &event);
    open_status_ = plugin->open(&host_, &backend_);
  }
  TestAgent(const TestAgent&) = delete;
  TestAgent& operator=(const TestAgent&) = delete;
  ~TestAgent() {
    if (backend_ == nullptr) return;
    for (auto& link : links) disconnect(*link);
    for (auto& region : regions) memory_->remove(backend_, region->registration);
    plugin_->close(backend_);
  }

  // ---- what the core would do

  uint32_t turn(int sleep_ms = 0) {
    uint32_t done = data_->progress(backend_, 0, now_ns());
    epoll_event events[16];
    const int count = epoll_wait(epoll_.get(), events, 16, done == 0 ? sleep_ms : 0);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == wake_.fd()) {
        wakes += wake_.drain();
      } else if (const auto found = watches_.find(events[i].data.fd); found != watches_.end()) {
        found->second.first(found->second.second, events[i].events);
      }
      ++done;
    }
    return done;
  }
  // Arms, sleeps in epoll, disarms. False: the time passed.
  bool sleep(int milliseconds) {
    if (data_->arm(backend_, 0) != 0) return true;
    epoll_event event;
    const int count = epoll_wait(epoll_.get(), &event, 1, milliseconds);
    data_->disarm(backend_, 0);
    return count > 0;
  }

  TestRegion& add(void* address, uint64_t bytes, uint32_t access = TOWLINE_ACCESS_ALL, uint32_t flags = 0) {
    auto region = std::make_unique<TestRegion>();
    region->ref = {
        ++last_key_, reinterpret_cast<uint64_t>(address), bytes, 0, TOWLINE_MEMORY_DRAM, access, flags, 0};
    const towline_region_args args = {sizeof args, region->ref, -1, 0, nullptr};
    size_t token_bytes = 0;
    failure.clear();
    if (memory_->add(backend_, &args, &region->registration, nullptr, &token_bytes) != TOWLINE_OK)
      std::abort();
    regions.push_back(std::move(region));
    return *regions.back();
  }
  void remove(TestRegion& region) {
    memory_->remove(backend_, region.registration);
    std::erase_if(regions, [&](const auto& entry) { return entry.get() == &region; });
  }

  std::vector<uint8_t> address() {
    std::vector<uint8_t> bytes(TOWLINE_MAX_ADDRESS_BYTES);
    size_t size = bytes.size();
    if (connection_->address(backend_, bytes.data(), &size) != TOWLINE_OK) std::abort();
    bytes.resize(size);
    return bytes;
  }
  Status probe(const towline_identity& peer, const std::vector<uint8_t>& address) {
    return static_cast<Status>(connection_->probe(backend_, &peer, address.data(), address.size()));
  }
  TestLink& connect(const towline_identity& peer, const std::vector<uint8_t>& address,
                    uint64_t timeout_ns = 10 * kSecondNs) {
    links.push_back(std::make_unique<TestLink>());
    TestLink& link = *links.back();
    failure.clear();
    const int32_t status = connection_->connect(backend_, 0, &peer, address.data(), address.size(),
                                                now_ns() + timeout_ns, &link, &link.connection);
    if (status != TOWLINE_OK) {
      link.down = true;
      link.status = static_cast<Status>(status);
      link.text = failure;
    }
    return link;
  }
  void disconnect(TestLink& link) {
    if (link.connection != nullptr) {
      for (towline_import* import : std::exchange(link.imports, {}))
        memory_->unimport(link.connection, import);
      connection_->disconnect(std::exchange(link.connection, nullptr));
    }
    link.up = false;
  }
  std::string describe(const TestLink& link) {
    char json[4096];
    return connection_->describe(link.connection, json, sizeof json) == TOWLINE_OK ? json : "";
  }

  struct Imported {
    Status status = Status::kAgain;
    towline_import* import = nullptr;
    std::string how;
  };
  // One try.
  void import_once(TestLink& link, const towline_region_ref& region, Imported& result) {
    const towline_region_args args = {sizeof args, region, -1, 0, nullptr};
    char how[64] = "";
    failure.clear();
    result.status =
        static_cast<Status>(memory_->import(link.connection, &args, nullptr, 0, &result.import, how));
    if (result.status == Status::kOk) link.imports.insert(result.import);
    result.how = how;
  }
  void unimport(TestLink& link, Imported& imported) {
    link.imports.erase(imported.import);
    memory_->unimport(link.connection, std::exchange(imported.import, nullptr));
  }

  Status send(TestLink& link, const std::string& message) {
    return static_cast<Status>(data_->send(link.connection, message.data(), message.size()));
  }
  void cancel(TestLink& link, uint64_t cookie) { data_->cancel(link.connection, cookie); }

  [[nodiscard]] const towline_identity& identity() const { return identity_; }
  [[nodiscard]] towline_backend* raw() const { return backend_; }
  [[nodiscard]] const towline_data_table_v1& data() const { return *data_; }
  [[nodiscard]] Status open_status() const { return static_cast<Status>(open_status_); }
  [[nodiscard]] uint64_t now_ns() const { return virtual_time_ ? clock.now_ns() : monotonic_now_ns(); }
  [[nodiscard]] bool ended(uint64_t cookie) const { return results.contains(cookie); }

  std::vector<std::unique_ptr<TestLink>> links;
  std::vector<std::unique_ptr<TestRegion>> regions;
  std::unordered_map<uint64_t, towline_part_result> results;
  uint64_t completed_twice = 0;
  std::function<void(TestLink&)> on_message;
  std::function<void(uint64_t)> on_complete;
  std::string failure;
  Status accept_with = Status::kOk;
  uint64_t wakes = 0;
  VirtualClock clock{1};

 private:
  static TestAgent& self(void* context) { return *static_cast<TestAgent*>(context); }

  void fill_identity() {
    const Id incarnation = Id::random();
    const HostIdentity here = read_host_identity();
    identity_ = {sizeof identity_,
                 {incarnation.hi, incarnation.lo},
                 {here.boot_id.hi, here.boot_id.lo},
                 here.pid,
                 here.pid_namespace,
                 here.process_start_time,
                 here.network_namespace,
                 1,
                 1,
                 name_.c_str()};
  }

  void fill_services() {
    host_.struct_size = sizeof host_;
    host_.context = this;
    host_.now_ns = [](void* c) { return self(c).now_ns(); };
    host_.log = [](void*, int32_t, const char*) {};
    host_.fail = [](void* c, const char* text) { self(c).failure = text; };
    host_.config = [](void* c, const char* key, const char* fallback) {
      const auto found = self(c).settings_.find(key);
      return found == self(c).settings_.end() ? fallback : found->second.c_str();
    };
    host_.self = [](void* c) -> const towline_identity* { return &self(c).identity_; };
    host_.worker_count = [](void*) { return 1u; };
    host_.watch = [](void* c, uint32_t, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
      return self(c).watch(EPOLL_CTL_ADD, fd, events, ready, argument);
    };
    host_.rewatch = [](void* c, uint32_t, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
      return self(c).watch(EPOLL_CTL_MOD, fd, events, ready, argument);
    };
    host_.unwatch = [](void* c, uint32_t, int fd) {
      if (self(c).watches_.erase(fd) != 0) epoll_ctl(self(c).epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    };
    host_.wake = [](void* c, uint32_t) { self(c).wake_.signal(); };
    host_.served = [](void*, void*, uint32_t, uint64_t) {};
    host_.heard = [](void*, void*) {};
    host_.granted = [](void*, void*, uint64_t) {};
    host_.refused = [](void*, uint32_t, void*, int32_t) {};
    host_.complete = [](void* c, uint64_t cookie, const towline_part_result* result) {
      if (!self(c).results.emplace(cookie, *result).second) ++self(c).completed_twice;
      if (self(c).on_complete) self(c).on_complete(cookie);
    };
    host_.message = [](void* c, void* peer, const void* data, size_t bytes) {
      auto* link = static_cast<TestLink*>(peer);
      link->messages.emplace_back(static_cast<const char*>(data), bytes);
      if (self(c).on_message) self(c).on_message(*link);
    };
    host_.accepted = [](void* c, uint32_t, towline_connection* connection, const towline_identity* identity,
                        void** peer) {
      if (self(c).accept_with != Status::kOk) return static_cast<int32_t>(self(c).accept_with);
      auto link = std::make_unique<TestLink>();
      link->connection = connection;
      link->up = true;
      link->peer_name = identity->name;
      *peer = link.get();
      self(c).links.push_back(std::move(link));
      return static_cast<int32_t>(TOWLINE_OK);
    };
    host_.connection_event = [](void*, void* peer, uint32_t event, int32_t status, const char* text) {
      auto* link = static_cast<TestLink*>(peer);
      link->up = event == TOWLINE_CONNECTION_UP;
      link->down = event == TOWLINE_CONNECTION_DOWN;
      link->status = static_cast<Status>(status);
      link->text = text;
    };
    host_.pin = [](void* c, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
                   void** pin) {
      return static_cast<int32_t>(self(c).pin(key, address, bytes, access, pointer, pin));
    };
    host_.unpin = [](void*, void* pin) { --static_cast<TestRegion*>(pin)->pins; };
  }

  int32_t watch(int operation, int fd, uint32_t events, towline_ready_fn ready, void* argument) {
    epoll_event event{events, {.fd = fd}};
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return TOWLINE_IO;
    watches_[fd] = {ready, argument};
    return TOWLINE_OK;
  }

  Status pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer, void** pin) {
    for (const auto& region : regions) {
      const towline_region_ref& ref = region->ref;
      if (ref.key != key) continue;
      if (address < ref.address || bytes > ref.bytes || address - ref.address > ref.bytes - bytes)
        return Status::kOutOfRange;
      if ((ref.access & access) != access) return Status::kPermissionDenied;
      ++region->pins;
      *pointer = reinterpret_cast<void*>(address);
      *pin = region.get();
      return Status::kOk;
    }
    return Status::kStale;
  }

  const towline_plugin_v1_t* plugin_;
  const towline_memory_table_v1* memory_ = nullptr;
  const towline_connection_table_v1* connection_ = nullptr;
  const towline_data_table_v1* data_ = nullptr;
  const Settings settings_;
  const std::string name_;
  const bool virtual_time_;
  towline_identity identity_ = plugin::sized<towline_identity>();
  towline_host_v1_t host_ = {};
  towline_backend* backend_ = nullptr;
  int32_t open_status_ = TOWLINE_INTERNAL;
  UniqueFd epoll_;
  EventFd wake_;
  std::unordered_map<int, std::pair<towline_ready_fn, void*>> watches_;
  uint64_t last_key_ = 0;
};

// A plan of flat blocks, one run each, between one local region and some remote ones, and what is prepared
// from it.
class TestPlan {
 public:
  TestPlan(TestAgent& agent, uint32_t op) : agent_(agent), op_(op) {}
  TestPlan(const TestPlan&) = delete;
  TestPlan& operator=(const TestPlan&) = delete;
  ~TestPlan() { release(); }

  void remote(const towline_region_ref& region, towline_import* import) {
    remote_regions_.push_back(region);
    imports_.push_back(import);
  }
  void add(const void* local, uint64_t remote_address, uint32_t length, uint32_t remote_region = 0) {
    const auto index = static_cast<uint32_t>(local_.size());
    runs_.push_back({index, index, 1, 0});
    local_.push_back({reinterpret_cast<uint64_t>(local), length, 0});
    remote_.push_back({remote_address, length, remote_region});
    bytes_ += length;
    equal_ = equal_ && length == local_.front().length;
  }
  Status prepare(TestLink& link) {
    const uint64_t length = equal_ ? local_.front().length : 0;
    const uint64_t blocks = local_.size();
    local_list_ = {sizeof local_list_, nullptr, local_.data(), blocks, blocks, length, 1, &local_region_, 1};
    remote_list_ = {
        sizeof remote_list_,   nullptr, remote_.data(), blocks, blocks, length, 1, remote_regions_.data(),
        remote_regions_.size()};
    plan_ = {sizeof plan_, &local_list_, &remote_list_, runs_.data(), runs_.size(), 1, 1,
             blocks,       bytes_,       length};
    const towline_prepare_args args = {sizeof args, &plan_, &registration_, imports_.data(), op_, 0};
    return static_cast<Status>(agent_.data().prepare(link.connection, &args, &prepared));
  }
  Status submit(uint64_t cookie, const std::string& message = {}, uint32_t flags = 0) {
    return submit_range(cookie, 0, bytes_, message, flags);
  }
  Status submit_range(uint64_t cookie, uint64_t begin, uint64_t end, const std::string& message = {},
                      uint32_t flags = 0) {
    const towline_submit_args args = {sizeof args,    cookie, begin, end,    message.data(),
                                      message.size(), flags,  0,     nullptr};
    return static_cast<Status>(agent_.data().submit(prepared, &args));
  }
  void release() {
    if (prepared != nullptr) agent_.data().unprepare(std::exchange(prepared, nullptr));
  }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

  towline_prepared* prepared = nullptr;

 private:
  TestAgent& agent_;
  const uint32_t op_;
  std::vector<towline_flat_block> local_;
  std::vector<towline_flat_block> remote_;
  std::vector<towline_run> runs_;
  std::vector<towline_region_ref> remote_regions_;
  std::vector<towline_import*> imports_;
  towline_region_ref local_region_ = {0, 0, UINT64_MAX, 0, TOWLINE_MEMORY_DRAM, TOWLINE_ACCESS_ALL, 0, 0};
  towline_registration* registration_ = nullptr;
  towline_list local_list_ = {};
  towline_list remote_list_ = {};
  towline_plan plan_ = {};
  uint64_t bytes_ = 0;
  bool equal_ = true;
};

// Turns every agent until `done`, for at most a minute.
template <class Done>
bool turn_until(std::initializer_list<TestAgent*> agents, Done&& done) {
  const uint64_t start_ns = monotonic_now_ns();
  while (!done()) {
    for (TestAgent* agent : agents) agent->turn();
    if (monotonic_now_ns() - start_ns > 60 * kSecondNs) return false;
  }
  return true;
}

}  // namespace towline::transport_test
