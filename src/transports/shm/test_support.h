// For the tests of shm: two agents joined in one process, agents in child processes, memory of each sort. Not
// part of the library.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "transports/memory/test_support.h"
#include "transports/shm/plugin.h"

namespace towline::shm::testing {

using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::TestPlan;
using transport_test::TestRegion;
using transport_test::turn_until;

inline std::vector<uint8_t> pattern(size_t bytes, uint8_t seed) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + (i >> 8) * 7 + seed);
  return data;
}

// Two agents of this process, joined; `a` connected. `settings` are a's, b has its own.
struct Pair {
  explicit Pair(const TestAgent::Settings& settings = {}, const TestAgent::Settings& settings_of_b = {})
      : a(towline_shm_plugin(), "a", settings), b(towline_shm_plugin(), "b", settings_of_b) {
    to_b = &a.connect(b.identity(), b.address());
    if (!turn_until({&a, &b}, [&] { return to_b->up && !b.links.empty(); })) {
      std::fprintf(stderr, "no connection: %s\n", to_b->text.c_str());
      std::abort();
    }
    to_a = b.links.front().get();
  }

  TestAgent::Imported import(const towline_region_ref& region) {
    TestAgent::Imported imported;
    turn_until({&a, &b}, [&] {
      a.import_once(*to_b, region, imported);
      return imported.status != Status::kAgain;
    });
    return imported;
  }
  bool turn(const std::function<bool()>& done) { return turn_until({&a, &b}, done); }

  TestAgent a;
  TestAgent b;
  TestLink* to_b = nullptr;
  TestLink* to_a = nullptr;
};

// A child's report about its agent.
struct Introduction {
  towline_identity identity;
  uint8_t address[256];
  uint64_t address_bytes;
  towline_region_ref regions[4];

  [[nodiscard]] std::vector<uint8_t> address_of() const { return {address, address + address_bytes}; }
};

inline Introduction introduce(TestAgent& agent) {
  Introduction introduction{};
  introduction.identity = agent.identity();
  introduction.identity.name = "child";
  const std::vector<uint8_t> address = agent.address();
  introduction.address_bytes = address.size();
  std::copy(address.begin(), address.end(), introduction.address);
  for (size_t i = 0; i < agent.regions.size() && i < 4; ++i) introduction.regions[i] = agent.regions[i]->ref;
  return introduction;
}

// A child process that runs `body`, with a pipe each way; killed and reaped when this goes. To be made before
// the test's own agent, so that the child holds nothing of it.
class Child {
 public:
  struct Pipes {
    int from_parent;
    int to_parent;
    void send(const Introduction& introduction) const {
      if (write(to_parent, &introduction, sizeof introduction) != sizeof introduction) _exit(9);
    }
    void send_number(int32_t number) const {
      if (write(to_parent, &number, sizeof number) != sizeof number) _exit(9);
    }
    [[nodiscard]] Introduction receive() const {
      Introduction introduction{};
      if (read(from_parent, &introduction, sizeof introduction) != sizeof introduction) _exit(9);
      introduction.identity.name = "parent";
      return introduction;
    }
    // Has the parent said anything more, or gone?
    [[nodiscard]] bool told() const {
      pollfd entry{from_parent, POLLIN, 0};
      return poll(&entry, 1, 0) != 0;
    }
  };

  explicit Child(const std::function<void(const Pipes&)>& body) {
    int up[2];
    int down[2];
    if (pipe2(up, O_CLOEXEC) != 0 || pipe2(down, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(up[0]);
      close(down[1]);
      body({down[0], up[1]});
      _exit(0);
    }
    close(up[1]);
    close(down[0]);
    from_.reset(up[0]);
    to_.reset(down[1]);
  }
  ~Child() { kill_now(); }

  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void signal(int number) const { ::kill(pid_, number); }
  void tell() { to_.reset(); }
  void send(const Introduction& introduction) const {
    if (write(to_.get(), &introduction, sizeof introduction) != sizeof introduction) std::abort();
  }
  [[nodiscard]] Introduction receive() const {
    Introduction introduction{};
    if (read(from_.get(), &introduction, sizeof introduction) != sizeof introduction) std::abort();
    introduction.identity.name = "child";
    return introduction;
  }
  [[nodiscard]] int32_t receive_number() const {
    int32_t number = -1;
    return read(from_.get(), &number, sizeof number) == sizeof number ? number : -1;
  }
  [[nodiscard]] bool has_spoken() const {
    pollfd entry{from_.get(), POLLIN, 0};
    return poll(&entry, 1, 0) != 0;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  UniqueFd from_;
  UniqueFd to_;
};

}  // namespace towline::shm::testing
