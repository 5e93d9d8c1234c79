// The fabric's engine against a bare program of a vendor's library: the same lists over the same network, between two
// processes, in turns. Each bare program is a type with
//
//   Bare(rail, memory)              registers it
//   std::vector<uint8_t> address()  for the other side's meet(), at most 64 KiB
//   void meet(bytes)
//   void move(write, bytes, count)  pages of that size, until all are at their place
//   void serve()                    one turn of the side whose memory is used
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/carrier.h"
#include "fabric/engine.h"
#include "fabric/rails.h"

namespace towline::bench {

using namespace towline::fabric;

inline constexpr std::size_t kSpan = 64 << 20;

inline void must(bool good, const char* what) {
  if (good) return;
  fmt::print(stderr, "{} failed\n", what);
  std::exit(1);
}

// As fork(). The child is ended with this process: it may never look at its socket again.
inline pid_t fork_along() {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "asking to be ended with the parent");
    if (getppid() != parent) _exit(1);
  }
  return child;
}

// One of the two processes.
struct Side {
  std::string rail;
  std::string host = "127.0.0.1";
  std::string network = {};      // the network namespace it is in; empty: this one
  uint64_t turns_of_a_time = 1;  // of the engine, until it is told the time again
};

inline void enter(const Side& side) {
  if (side.network.empty()) return;
  const int fd = ::open(("/run/netns/" + side.network).c_str(), O_RDONLY | O_CLOEXEC);
  must(fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0, "entering the other host's network namespace");
  ::close(fd);
}

struct Node final : EngineHost {
  explicit Node(const Side& side) : turns_of_a_time(side.turns_of_a_time) {
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(make_rail(side.rail));
    engine = std::make_unique<Engine>(EngineOptions{}, std::move(domains), *this);
    CarrierOptions options;
    options.listen = side.host + ":0";
    carrier = std::make_unique<Carrier>(*engine, options);
  }
  void complete(uint64_t, const TransferResult& result) noexcept override {
    must(result.status == Status::kOk, "a transfer of the engine");
    ++done;
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t) noexcept override {}
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view) noexcept override {}
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (carrier != nullptr) carrier->send(peer, message);
  }
  void turn() {
    if (turns % turns_of_a_time == 0) now_ns = monotonic_now_ns();
    if (turns++ % 64 == 0) carrier->progress(now_ns);
    engine->progress(now_ns);
  }

  const uint64_t turns_of_a_time;

  uint64_t done = 0;
  uint64_t turns = 0;
  uint64_t now_ns = 0;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Carrier> carrier;
};

inline void say(int socket, const void* data, std::size_t bytes) {
  must(write(socket, data, bytes) == static_cast<ssize_t>(bytes), "write to the other process");
}
inline std::vector<uint8_t> hear(int socket) {
  std::vector<uint8_t> packet(64 << 10);
  const ssize_t got = read(socket, packet.data(), packet.size());
  must(got > 0, "read from the other process");
  packet.resize(static_cast<std::size_t>(got));
  return packet;
}

// A side's address where it is plain data.
template <class Plain>
std::vector<uint8_t> pack_plain(const Plain& value) {
  std::vector<uint8_t> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
template <class Plain>
void unpack_plain(const std::vector<uint8_t>& bytes, Plain& value) {
  must(bytes.size() == sizeof value, "an address");
  std::memcpy(&value, bytes.data(), sizeof value);
}

struct Pages {
  const LocalMemory* local = nullptr;
  const RemoteMemory* remote = nullptr;
  std::size_t bytes = 0;
  std::size_t count = 0;
  std::size_t given = 0;
  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    Pages& pages = *static_cast<Pages*>(context);
    const std::size_t count = std::min(capacity, pages.count - pages.given);
    for (std::size_t i = 0; i < count; ++i, ++pages.given)
      out[i] = {pages.local->address + pages.given * pages.bytes,
                pages.remote->address + pages.given * pages.bytes, pages.bytes, 0, 0};
    return count;
  }
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Serves whichever of the two is measured.
template <class Make>
[[noreturn]] void own(int socket, const Side& side, Make make) {
  enter(side);
  std::vector<uint8_t> memory(kSpan, 1);
  Node node{side};
  auto bare = make(side.rail, memory);
  const LocalMemory mine = node.engine->register_memory({memory.data(), memory.size(), true, true});
  for (const std::vector<uint8_t>& packet :
       {encode(node.carrier->address()), encode(Engine::describe(mine)), bare->address()})
    say(socket, packet.data(), packet.size());
  bare->meet(hear(socket));
  char mode = 'e';
  for (uint64_t i = 0;; ++i) {
    char next = 0;
    if (i % 256 == 0 && recv(socket, &next, 1, MSG_DONTWAIT) == 1) {
      mode = next;
      if (mode == 'q') _exit(0);
      say(socket, &mode, 1);
    }
    if (mode == 'e')
      node.turn();
    else
      bare->serve();
  }
}

template <class Make>
void compare(int socket, const Side& side, int rounds, Make make) {
  const auto address = decode_carrier_address(hear(socket));
  const auto remote = decode_memory(hear(socket));
  const std::vector<uint8_t> theirs = hear(socket);
  std::vector<uint8_t> memory(kSpan, 2);
  Node node{side};
  auto bare = make(side.rail, memory);
  const std::vector<uint8_t> own_address = bare->address();
  say(socket, own_address.data(), own_address.size());
  bare->meet(theirs);
  const LocalMemory mine = node.engine->register_memory({memory.data(), memory.size(), true, true});
  const Handle peer = node.carrier->connect(*address);
  const LocalMemory* local = &mine;
  const RemoteMemory* far = &*remote;
  const auto by_engine = [&](bool write, std::size_t bytes, std::size_t count) {
    Pages pages{local, far, bytes, count, 0};
    TransferRequest request;
    request.peer = peer;
    request.op = write ? TransferOp::kWrite : TransferOp::kRead;
    request.segments = {Pages::next, &pages};
    request.local = &local;
    request.remote = &far;
    request.bytes = bytes * count;
    const uint64_t until = node.done + 1;
    must(node.engine->submit(request) == Status::kInProgress, "submit");
    while (node.done != until) node.turn();
  };
  const auto timed = [&](char mode, auto&& run) {
    say(socket, &mode, 1);
    (void)hear(socket);
    const uint64_t start_ns = monotonic_now_ns();
    run();
    return static_cast<double>(monotonic_now_ns() - start_ns);
  };
  fmt::print("{:<8} {:>10} {:>8} {:>10} {:>10} {:>8} {:>8} {:>8}\n", "op", "bytes", "pages", "engine", "bare",
             "ratio", "least", "most");
  for (const bool write : {true, false}) {
    for (const auto& [bytes, count] :
         {std::pair<std::size_t, std::size_t>{4 << 10, 4096}, {64 << 10, 1024}, {1 << 20, 64}}) {
      std::vector<double> engine, raw, ratios;
      for (int i = -2; i < rounds; ++i) {  // two to warm up
        const double one = timed('e', [&] { by_engine(write, bytes, count); });
        const double two = timed('b', [&] { bare->move(write, bytes, count); });
        if (i < 0) continue;
        engine.push_back(static_cast<double>(bytes * count) / one);
        raw.push_back(static_cast<double>(bytes * count) / two);
        ratios.push_back(two / one);
      }
      const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
      fmt::print("{:<8} {:>10} {:>8} {:>10.3f} {:>10.3f} {:>8.2f} {:>8.2f} {:>8.2f}\n",
                 write ? "write" : "read", bytes, count, median(engine), median(raw), median(ratios), *least,
                 *most);
      std::fflush(stdout);
    }
  }
  // Connections and memory of both end with the process.
  say(socket, "q", 1);
}

// `make` gets the rail and the memory to use, in either process, and returns a pointer to a Bare.
template <class Make>
int run(const Side& here, const Side& there, int rounds, Make make) {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0, "socketpair");
  const pid_t owner = fork_along();
  if (owner == 0) own(sockets[1], there, make);
  close(sockets[1]);
  compare(sockets[0], here, rounds, make);
  waitpid(owner, nullptr, 0);
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace towline::bench
