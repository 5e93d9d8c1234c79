// Engines of several hosts on a virtual clock, joined by a loopback network and by letters for control messages.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>

#include "fabric/engine.h"
#include "fabric/loopback/loopback.h"

namespace towline::fabric::testing {

struct TestHost final : EngineHost {
  struct Letter {
    Handle peer;
    std::vector<uint8_t> bytes;
  };
  struct Outcome {
    TransferResult result;
    uint64_t at_ns = 0;
    uint32_t completed = 0;
    uint32_t fences = 0;
  };

  void complete(uint64_t cookie, const TransferResult& result) noexcept override {
    Outcome& outcome = outcomes[cookie];
    outcome.result = result;
    outcome.at_ns = *now_ns;
    outcome.fences = result.fences;
    ++outcome.completed;
    ++completions;
  }
  void fenced(uint64_t cookie, uint32_t fences) noexcept override { outcomes[cookie].fences = fences; }
  void counted(Handle, uint32_t immediate, uint32_t count) noexcept override { counts[immediate] += count; }
  void received(Handle, std::span<const uint8_t> message) noexcept override {
    messages.emplace_back(message.begin(), message.end());
  }
  void lost(Handle, Status, std::string_view why) noexcept override { losses.emplace_back(why); }
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (mute) return;
    Letter letter{peer, {message.begin(), message.end()}};
    if (hold)
      hold(letter);
    else
      letters.push_back(std::move(letter));
  }

  uint64_t* now_ns = nullptr;
  bool mute = false;                        // what it says does not arrive
  std::function<void(const Letter&)> hold;  // takes what it says instead
  bool stopped = false;                     // makes no progress
  std::map<uint64_t, Outcome> outcomes;
  uint64_t completions = 0;
  std::map<uint32_t, uint64_t> counts;
  std::vector<std::string> messages;
  std::vector<std::string> losses;
  std::deque<Letter> letters;
  std::unique_ptr<Engine> engine;
  std::map<uint32_t, Handle> peers;  // by host
};

// Does what the port does; tests change what they need.
class PortAround : public Domain {
 public:
  explicit PortAround(std::unique_ptr<Domain> port) : port_(std::move(port)) {}

  const DomainTraits& traits() const noexcept override { return port_->traits(); }
  std::vector<uint8_t> address() const override { return port_->address(); }
  Registration register_memory(const MemoryToRegister& memory) override {
    return port_->register_memory(memory);
  }
  void deregister_memory(const Registration& registration) noexcept override {
    port_->deregister_memory(registration);
  }
  std::vector<uint8_t> open(uint32_t connection, ConnectionEnd end) override {
    return port_->open(connection, end);
  }
  void connect(uint32_t connection, std::span<const uint8_t> other_end) override {
    port_->connect(connection, other_end);
  }
  void stop(uint32_t connection) noexcept override { port_->stop(connection); }
  void release(uint32_t connection) noexcept override { port_->release(connection); }
  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override {
    return port_->post(connection, requests, count);
  }
  std::size_t post_receives(uint32_t connection, const ReceiveRequest* requests,
                            std::size_t count) noexcept override {
    return port_->post_receives(connection, requests, count);
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    return port_->poll(completions, capacity);
  }

 private:
  std::unique_ptr<Domain> port_;
};

class World {
 public:
  explicit World(uint64_t seed = 1) : fabric(seed, [this] { return now_ns; }) {}

  // Its ports are numbered on from those of the hosts before.
  TestHost& add_host(
      uint32_t rails, LoopbackOptions port = {}, EngineOptions options = {},
      const std::function<std::unique_ptr<Domain>(std::unique_ptr<Domain>)>& wrap = [](auto domain) {
        return domain;
      }) {
    hosts.push_back(std::make_unique<TestHost>());
    TestHost& host = *hosts.back();
    host.now_ns = &now_ns;
    std::vector<std::unique_ptr<Domain>> domains;
    for (uint32_t i = 0; i < rails; ++i) domains.push_back(wrap(fabric.make_domain(port)));
    host.engine = std::make_unique<Engine>(options, std::move(domains), host);
    for (uint32_t other = 0; other + 1 < hosts.size(); ++other) {
      const auto index = static_cast<uint32_t>(hosts.size() - 1);
      host.peers[other] = host.engine->add_peer(hosts[other]->engine->address());
      hosts[other]->peers[index] = hosts[other]->engine->add_peer(host.engine->address());
    }
    return host;
  }

  void step(uint64_t ns = 1'000) {
    now_ns += ns;
    for (uint32_t from = 0; from < hosts.size(); ++from) {
      TestHost& host = *hosts[from];
      if (!host.stopped) host.engine->progress(now_ns);
      while (!host.letters.empty()) {
        const TestHost::Letter letter = std::move(host.letters.front());
        host.letters.pop_front();
        for (const auto& [to, handle] : host.peers)
          if (handle == letter.peer && !hosts[to]->stopped)
            hosts[to]->engine->on_control(hosts[to]->peers[from], letter.bytes);
      }
    }
  }

  // False when it did not come to be in that time.
  bool until(const std::function<bool()>& done, uint64_t limit_ns = 10 * kSecondNs,
             uint64_t step_ns = 1'000) {
    const uint64_t end = now_ns + limit_ns;
    while (!done() && now_ns < end) step(step_ns);
    return done();
  }

  uint64_t now_ns = 1;
  LoopbackFabric fabric;
  std::vector<std::unique_ptr<TestHost>> hosts;
};

// One registered buffer on each of two hosts, and writes and reads of the first between them.
class Buffers {
 public:
  Buffers(World& world, uint64_t bytes, uint32_t from = 0, uint32_t to = 1)
      : from_(*world.hosts[from]), to_(*world.hosts[to]), to_index_(to), source(bytes), target(bytes) {
    for (uint64_t i = 0; i < bytes; ++i) source[i] = static_cast<uint8_t>(i * 31 + i / 4096);
    source_memory = from_.engine->register_memory({source.data(), bytes, true, true});
    target_memory = to_.engine->register_memory({target.data(), bytes, true, true});
    remote = Engine::describe(target_memory);
    local_pointer = &source_memory;
    remote_pointer = &remote;
  }
  ~Buffers() {
    from_.engine->deregister_memory(source_memory);
    to_.engine->deregister_memory(target_memory);
  }

  // The whole, in segments of `piece` bytes.
  TransferRequest request(TransferOp op, uint64_t piece, uint64_t cookie = 1) {
    given = 0;
    piece_ = piece;
    TransferRequest made;
    made.peer = from_.peers[to_index_];
    made.op = op;
    made.segments = {next, this};
    made.local = &local_pointer;
    made.remote = &remote_pointer;
    made.bytes = source.size();
    made.cookie = cookie;
    return made;
  }

  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    Buffers& self = *static_cast<Buffers*>(context);
    std::size_t count = 0;
    for (; count < capacity && self.given < self.source.size(); ++count) {
      const uint64_t length = std::min<uint64_t>(self.piece_, self.source.size() - self.given);
      out[count] = {self.source_memory.address + self.given, self.target_memory.address + self.given, length,
                    0, 0};
      self.given += length;
    }
    return count;
  }

 private:
  TestHost& from_;
  TestHost& to_;
  uint32_t to_index_;
  uint64_t piece_ = 0;

 public:
  std::vector<uint8_t> source;
  std::vector<uint8_t> target;
  uint64_t given = 0;
  LocalMemory source_memory;
  LocalMemory target_memory;
  RemoteMemory remote;
  const LocalMemory* local_pointer = nullptr;
  const RemoteMemory* remote_pointer = nullptr;
};

}  // namespace towline::fabric::testing
