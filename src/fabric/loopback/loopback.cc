#include "fabric/loopback/loopback.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "base/wire.h"
#include "fabric/loopback/region.h"

namespace towline::fabric {
namespace {

// One end of a connection.
struct End {
  uint64_t id = 0;
  uint32_t port = 0;
  uint32_t number = 0;
  uint64_t peer = 0;  // id; 0 before connect
  bool stopped = false;
  bool broken = false;  // no request of it is carried out any more, except what is in the network
  std::deque<ReceiveRequest> receives;
  uint64_t last_arrival_ns = 0;
  uint64_t last_completion_ns = 0;
};

enum class EventKind : uint8_t { kArrive, kComplete, kDown };

struct Event {
  EventKind kind = EventKind::kArrive;
  uint64_t end = 0;   // the initiator's, or the one that learns that it is down
  uint64_t peer = 0;  // where it arrives
  WorkRequest request{};
  Status status = Status::kOk;
  bool repeated = false;
  bool adrift = false;  // its initiator is gone: the payload is here
  std::vector<uint8_t> payload;
};

struct PortState {
  bool down = false;
  bool host_only = false;
  uint64_t bytes_per_s = 0;
  uint64_t busy_until_ns = 0;
  DomainTraits traits;
  std::unordered_map<uint64_t, LoopbackRegion> regions;  // by key
  std::unordered_map<uint32_t, uint64_t> ends;           // by number
  std::deque<Completion> completions;
};

}  // namespace

class LoopbackFabric::Network {
 public:
  Network(uint64_t seed, std::function<uint64_t()> now_ns) : random_(seed), now_ns_(std::move(now_ns)) {}

  uint32_t add_port(LoopbackOptions options) {
    PortState port;
    port.bytes_per_s = options.bytes_per_s;
    port.host_only = options.host_only;
    port.traits = std::move(options.traits);
    if (port.traits.kind.empty()) port.traits.kind = "loopback";
    if (port.traits.name.empty()) port.traits.name = fmt::format("loopback {}", ports_.size());
    ports_.push_back(std::move(port));
    return static_cast<uint32_t>(ports_.size() - 1);
  }

  PortState& port(uint32_t number) { return ports_[number]; }

  uint64_t add_region(uint32_t port, const MemoryToRegister& memory) {
    PortState& state = ports_[port];
    if (memory.dmabuf_fd >= 0 && state.host_only)
      fail(Status::kUnsupported, "{}: the rail takes no dma-buf", state.traits.name);
    const uint64_t key = random_.next() | 1;
    state.regions.emplace(key, LoopbackRegion{memory, state.traits.name});
    return key;
  }

  uint64_t open(uint32_t port, uint32_t number) {
    if (ports_[port].down) fail(Status::kUnreachable, "{}: the port is down", ports_[port].traits.name);
    if (ports_[port].ends.contains(number))
      fail(Status::kAlreadyExists, "{}: connection {} is open", ports_[port].traits.name, number);
    End end;
    end.id = ++last_end_;
    end.port = port;
    end.number = number;
    const uint64_t id = end.id;
    ends_[id] = std::move(end);
    try {
      ports_[port].ends[number] = id;
    } catch (...) {
      ends_.erase(id);
      throw;
    }
    return id;
  }

  void connect(uint32_t port, uint32_t number, uint64_t other) { end_of(port, number)->peer = other; }

  End* end_of(uint32_t port, uint32_t number) {
    const auto found = ports_[port].ends.find(number);
    return found == ports_[port].ends.end() ? nullptr : &ends_.at(found->second);
  }

  void stop(End& end) {
    end.stopped = true;
    set_adrift(end);
  }

  void release(uint32_t port, uint32_t number) {
    End* end = end_of(port, number);
    if (end == nullptr) return;
    auto& completions = ports_[port].completions;
    std::erase_if(completions, [&](const Completion& entry) {
      return entry.connection == number && entry.kind != CompletionKind::kDomainDown;
    });
    ports_[port].ends.erase(number);
    ends_.erase(end->id);
  }

  std::size_t post(End& end, const WorkRequest* requests, std::size_t count) {
    if (end.stopped || end.broken || end.peer == 0 || ports_[end.port].down) return 0;
    const PortState& port = ports_[end.port];
    for (std::size_t i = 0; i < count; ++i) try {
        Event event;
        event.end = end.id;
        event.peer = end.peer;
        event.request = requests[i];
        uint64_t when = send_time(end, requests[i].length) + delay();
        if (random_.chance(faults_.drop)) when += faults_.again_after_ns;
        if (port.traits.ordered) when = end.last_arrival_ns = std::max(when, end.last_arrival_ns);
        schedule(when, std::move(event));
      } catch (const std::bad_alloc&) {
        break_all();
        return i;
      }
    return count;
  }

  void run() {
    const uint64_t now = now_ns_();
    while (!events_.empty() && events_.begin()->first.first <= now) {
      auto node = events_.extract(events_.begin());
      try {
        happen(node.key().first, node.mapped());
      } catch (const std::bad_alloc&) {
        break_all();
      }
    }
  }

  // Something was lost for want of memory, and nobody can say any more what is complete: every port ends its
  // connections.
  void break_all() noexcept { ++breakdowns_; }
  uint64_t breakdowns() const noexcept { return breakdowns_; }

  void kill(uint32_t port) {
    ports_[port].down = true;
    for (const auto& [number, id] : ports_[port].ends) {
      End& end = ends_.at(id);
      end.broken = true;
      set_adrift(end);
    }
    push(port, {0, 0, 0, 0, Status::kUnreachable, CompletionKind::kDomainDown});
  }

  void push(uint32_t port, const Completion& completion) {
    auto& completions = ports_[port].completions;
    completions.push_back(completion);
    if (completion.kind <= CompletionKind::kReceiveImmediate &&
        completions.size() > ports_[port].traits.completion_depth)
      ++completion_overruns;
  }

  uint64_t next_event_ns() const noexcept {
    return events_.empty() ? kNoDeadline : events_.begin()->first.first;
  }

  LoopbackFaults faults_;
  uint64_t receive_overruns = 0;
  uint64_t completion_overruns = 0;
  uint64_t late_arrivals = 0;
  uint64_t cuts = 0;

 private:
  uint64_t delay() { return random_.between(faults_.min_delay_ns, faults_.max_delay_ns); }

  uint64_t send_time(const End& end, uint64_t bytes) {
    PortState& port = ports_[end.port];
    const uint64_t now = now_ns_();
    if (port.bytes_per_s == 0) return now;
    port.busy_until_ns = std::max(port.busy_until_ns, now) + bytes * kSecondNs / port.bytes_per_s;
    return port.busy_until_ns;
  }

  void schedule(uint64_t when, Event event) { events_.emplace(std::pair{when, ++order_}, std::move(event)); }

  // An operation that its initiator has given up is dropped, or lives on in the network with its bytes of now. An ordered
  // connection carries out nothing behind a dropped operation.
  void set_adrift(End& end, bool survives = true) {
    const bool ordered = ports_[end.port].traits.ordered;
    const uint64_t ordered_delay_ns = random_.chance(0.5) ? random_.below(2'000'000) : 0;
    for (auto at = events_.begin(); at != events_.end();) {
      Event& event = at->second;
      if (event.end != end.id || event.adrift) {
        ++at;
      } else if (survives && event.kind == EventKind::kArrive && event.request.kind != RequestKind::kRead &&
                 random_.chance(0.5)) {
        event.adrift = true;
        const uint8_t* from = local_of(end, event.request);
        try {
          if (event.request.length != 0) event.payload.assign(from, from + event.request.length);
        } catch (const std::bad_alloc&) {
          at = events_.erase(at);
          continue;
        }
        const uint64_t late_ns = ordered ? ordered_delay_ns : random_.below(2'000'000);
        auto node = events_.extract(at++);
        node.key().first += late_ns;
        events_.insert(std::move(node));
      } else {
        if (ordered && event.kind == EventKind::kArrive) survives = false;
        at = events_.erase(at);
      }
    }
  }

  void happen(uint64_t when, Event& event) {
    switch (event.kind) {
      case EventKind::kArrive:
        return arrive(when, event);
      case EventKind::kComplete:
        return complete(event);
      case EventKind::kDown:
        return down(event);
    }
  }

  void arrive(uint64_t when, Event& event) {
    const auto initiator = ends_.find(event.end);
    const auto target = ends_.find(event.peer);
    const bool reached = target != ends_.end() && !target->second.stopped && !target->second.broken &&
                         !ports_[target->second.port].down;
    if (event.adrift) {
      if (reached && carry_out(target->second, event) == Status::kOk) ++late_arrivals;
      return;
    }
    End& end = initiator->second;
    if (end.broken || end.stopped) return;
    if (!reached) return break_end(when + faults_.notice_ns, end, event.request, Status::kUnreachable, false);
    if (random_.chance(faults_.cut) && !event.repeated) {
      ++cuts;
      const bool carried_out = random_.chance(0.5) && carry_out(target->second, event) == Status::kOk;
      break_end(when + delay(), end, event.request, Status::kIo,
                carried_out || !ports_[end.port].traits.ordered);
      if (random_.chance(0.5)) tell_down(when + random_.below(faults_.notice_ns), target->second);
      return;
    }
    const Status status = carry_out(target->second, event);
    if (status == Status::kAgain) {
      if (event.repeated) return;
      ++receive_overruns;
      event.repeated = true;  // counted once
      return schedule(when + faults_.again_after_ns, std::move(event));
    }
    if (is_error(status)) return break_end(when + delay(), end, event.request, status, false);
    if (event.repeated) return;
    const bool ordered = ports_[end.port].traits.ordered;
    const uint64_t back = delay();
    if (random_.chance(faults_.repeat)) {
      if (ordered) {
        carry_out(target->second, event);
      } else if (event.request.kind != RequestKind::kRead) {
        Event again = event;
        again.repeated = true;
        schedule(when + back / 2, std::move(again));
      }
    }
    uint64_t done = when + back;
    if (ports_[end.port].traits.completes_in_order)
      done = end.last_completion_ns = std::max(done, end.last_completion_ns);
    event.kind = EventKind::kComplete;
    schedule(done, std::move(event));
  }

  // The initiator's side of a request.
  uint8_t* local_of(const End& end, const WorkRequest& request) {
    const auto& regions = ports_[end.port].regions;
    const auto region = regions.find(request.local_key);
    return region == regions.end() ? reinterpret_cast<uint8_t*>(request.local)
                                   : region->second.find(request.local);
  }

  Status carry_out(End& target, Event& event) {
    const WorkRequest& request = event.request;
    PortState& port = ports_[target.port];
    const uint8_t* from = event.adrift ? event.payload.data() : local_of(ends_.at(event.end), request);
    if (request.kind == RequestKind::kSend || request.kind == RequestKind::kWriteImmediate) {
      if (target.receives.empty()) return Status::kAgain;
    }
    if (request.kind != RequestKind::kSend && request.length != 0) {
      const auto region = port.regions.find(request.remote_key);
      if (region == port.regions.end()) return Status::kStale;
      const MemoryToRegister& memory = region->second.memory();
      const auto start = reinterpret_cast<uint64_t>(memory.address);
      if (request.remote < start || request.remote - start > memory.bytes ||
          request.length > memory.bytes - (request.remote - start))
        return Status::kOutOfRange;
      const bool allowed = request.kind == RequestKind::kRead ? memory.remote_read : memory.remote_write;
      if (!allowed) return Status::kPermissionDenied;
      uint8_t* there = region->second.find(request.remote);
      if (request.kind == RequestKind::kRead) {
        event.payload.assign(there, there + request.length);
      } else {
        std::memcpy(there, from, request.length);
      }
    }
    if (request.kind == RequestKind::kSend) {
      const ReceiveRequest receive = target.receives.front();
      if (request.length > receive.length) return Status::kProtocol;
      target.receives.pop_front();
      std::memcpy(reinterpret_cast<void*>(receive.address), from, request.length);
      push(target.port,
           {receive.cookie, 0, target.number, request.length, Status::kOk, CompletionKind::kReceive});
    } else if (request.kind == RequestKind::kWriteImmediate) {
      const ReceiveRequest receive = target.receives.front();
      target.receives.pop_front();
      push(target.port, {receive.cookie, request.immediate, target.number, 0, Status::kOk,
                         CompletionKind::kReceiveImmediate});
    }
    return Status::kOk;
  }

  void complete(Event& event) {
    const auto found = ends_.find(event.end);
    if (found == ends_.end()) return;
    End& end = found->second;
    if (end.broken && event.status == Status::kOk) return;  // the answer found no connection
    if (event.request.kind == RequestKind::kRead && !event.payload.empty())
      std::memcpy(local_of(end, event.request), event.payload.data(), event.payload.size());
    if (event.request.signalled || event.status != Status::kOk)
      push(end.port, {event.request.cookie, 0, end.number, event.request.length, event.status,
                      CompletionKind::kRequest});
  }

  void down(const Event& event) {
    const auto found = ends_.find(event.end);
    if (found == ends_.end() || found->second.stopped) return;
    found->second.broken = true;
    push(found->second.port, {0, 0, found->second.number, 0, event.status, CompletionKind::kConnectionDown});
  }

  void break_end(uint64_t when, End& end, const WorkRequest& request, Status status, bool survives) {
    end.broken = true;
    set_adrift(end, survives);
    Event event;
    event.kind = EventKind::kComplete;
    event.end = end.id;
    event.request = request;
    event.request.kind = RequestKind::kWrite;  // nothing to place
    event.status = status;
    schedule(std::max(when, end.last_completion_ns), std::move(event));
  }

  void tell_down(uint64_t when, const End& end) {
    Event event;
    event.kind = EventKind::kDown;
    event.end = end.id;
    event.status = Status::kIo;
    schedule(when, std::move(event));
  }

  Random random_;
  std::function<uint64_t()> now_ns_;
  std::deque<PortState> ports_;
  std::unordered_map<uint64_t, End> ends_;
  uint64_t last_end_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Event> events_;
  uint64_t order_ = 0;
  uint64_t breakdowns_ = 0;
};

class LoopbackFabric::Port final : public Domain {
 public:
  Port(Network& network, uint32_t number) : network_(network), number_(number) {}
  ~Port() override {
    std::vector<uint32_t> numbers;
    for (const auto& [number, id] : state().ends) numbers.push_back(number);
    for (const uint32_t number : numbers) {
      stop(number);
      release(number);
    }
  }

  const DomainTraits& traits() const noexcept override { return state().traits; }

  std::vector<uint8_t> address() const override {
    std::vector<uint8_t> bytes;
    WireWriter{bytes}.u32(number_);
    return bytes;
  }

  Registration register_memory(const MemoryToRegister& memory) override {
    const uint64_t key = network_.add_region(number_, memory);
    return {key, key, reinterpret_cast<uint64_t>(memory.address), key};
  }
  void deregister_memory(const Registration& registration) noexcept override {
    state().regions.erase(registration.handle);
  }

  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd) override {
    std::vector<uint8_t> bytes;
    bytes.reserve(sizeof(uint64_t));  // an end that is open must not fail here any more
    WireWriter{bytes}.u64(network_.open(number_, connection));
    return bytes;
  }
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override {
    WireReader in{other_end};
    const uint64_t other = in.u64();
    if (!in.ok() || in.remaining() != 0 || other == 0)
      fail(Status::kProtocol, "{}: the peer's {} bytes do not describe the other end of a connection",
           state().traits.name, other_end.size());
    network_.connect(number_, connection, other);
  }
  void stop(uint32_t connection) noexcept override {
    if (End* end = network_.end_of(number_, connection)) network_.stop(*end);
  }
  void release(uint32_t connection) noexcept override { network_.release(number_, connection); }

  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override {
    End* end = network_.end_of(number_, connection);
    return end == nullptr ? 0 : network_.post(*end, requests, count);
  }
  std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    End* end = network_.end_of(number_, connection);
    if (end == nullptr || end->stopped) return 0;
    try {
      end->receives.insert(end->receives.end(), requests, requests + count);
    } catch (const std::bad_alloc&) {
      network_.break_all();
      return 0;
    }
    return count;
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    network_.run();
    if (breakdowns_ != network_.breakdowns() && capacity != 0) {
      breakdowns_ = network_.breakdowns();
      completions[0] = {0, 0, 0, 0, Status::kOutOfMemory, CompletionKind::kDomainDown};
      return 1;
    }
    auto& waiting = state().completions;
    const std::size_t count = std::min(capacity, waiting.size());
    std::copy_n(waiting.begin(), count, completions);
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  bool recover() noexcept override { return !state().down; }

 private:
  PortState& state() const noexcept { return network_.port(number_); }

  Network& network_;
  const uint32_t number_;
  uint64_t breakdowns_ = network_.breakdowns();
};

LoopbackFabric::LoopbackFabric(uint64_t seed, std::function<uint64_t()> now_ns)
    : network_(std::make_unique<Network>(seed, std::move(now_ns))) {}
LoopbackFabric::~LoopbackFabric() = default;

std::unique_ptr<Domain> LoopbackFabric::make_domain(LoopbackOptions options) {
  return std::make_unique<Port>(*network_, network_->add_port(std::move(options)));
}
void LoopbackFabric::set_faults(const LoopbackFaults& faults) noexcept { network_->faults_ = faults; }
void LoopbackFabric::set_rate(uint32_t port, uint64_t bytes_per_s) noexcept {
  network_->port(port).bytes_per_s = bytes_per_s;
}
void LoopbackFabric::kill(uint32_t port) { network_->kill(port); }
void LoopbackFabric::revive(uint32_t port) { network_->port(port).down = false; }
uint64_t LoopbackFabric::next_event_ns() const noexcept { return network_->next_event_ns(); }
uint64_t LoopbackFabric::receive_overruns() const noexcept { return network_->receive_overruns; }
uint64_t LoopbackFabric::completion_overruns() const noexcept { return network_->completion_overruns; }
uint64_t LoopbackFabric::late_arrivals() const noexcept { return network_->late_arrivals; }
uint64_t LoopbackFabric::cuts() const noexcept { return network_->cuts; }

}  // namespace towline::fabric
