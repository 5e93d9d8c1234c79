// Many endpoints in several processes, each of which meets all others and signals each of them once. A member is a type with
//
//   Member(rail, members)
//   std::vector<uint8_t> address()  for the others' meet(), at most 64 KiB
//   void meet(address)              connects and signals, or does so in a later turn
//   std::size_t turn()              one turn of its work; how many events it had
//   bool arm()                      whether one of its descriptors becomes readable before a turn has work again
//   std::vector<int> descriptors()
//   uint64_t signals()              that it has had
//   void count(MeshFigures&)        adds its connections
//
// Members of one process share its thread, which sleeps while none of them has anything to do.
#pragma once

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

#include "bare.h"

namespace towline::bench {

struct MeshFigures {
  double processor_s = 0;
  uint64_t connections = 0;  // ends that are open, as initiator and as responder
  uint64_t evictions = 0;
  uint64_t breaks = 0;
  uint64_t descriptors = 0;
  uint64_t resident_kib = 0;
};

inline uint64_t open_descriptors() {
  uint64_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

inline double processor_s() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Gives turns to those that have work: a poll of a member costs more the more connections it has.
template <class Member>
class MeshThread {
 public:
  explicit MeshThread(std::vector<std::unique_ptr<Member>>& members)
      : members_(members), sleeps_until_ns_(members.size()), poller_(epoll_create1(0)) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const int fd : members[i]->descriptors()) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = i;
        must(epoll_ctl(poller_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
      }
    }
  }

  void turn() {
    constexpr uint64_t kTickNs = 5 * kMillisecondNs;  // until timers are looked at
    bool work = false;
    const uint64_t now_ns = monotonic_now_ns();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (sleeps_until_ns_[i] > now_ns) continue;
      const bool idle = members_[i]->turn() == 0 && members_[i]->arm();
      sleeps_until_ns_[i] = idle ? now_ns + kTickNs : 0;
      work |= !idle;
    }
    epoll_event events[64];
    const int count = epoll_wait(poller_, events, std::size(events), work ? 0 : 1);
    for (int i = 0; i < count; ++i) sleeps_until_ns_[events[i].data.u64] = 0;
  }

 private:
  std::vector<std::unique_ptr<Member>>& members_;
  std::vector<uint64_t> sleeps_until_ns_;
  const int poller_;
};

// Process `index` of so many. It has the members whose number leaves that rest.
template <class Member>
[[noreturn]] void mesh_process(int socket, const std::string& rail, uint32_t count, uint32_t index,
                               uint32_t processes) {
  std::vector<std::unique_ptr<Member>> members;
  std::vector<uint32_t> numbers;
  for (uint32_t i = index; i < count; i += processes) {
    members.push_back(std::make_unique<Member>(rail, count));
    numbers.push_back(i);
    const auto address = members.back()->address();
    say(socket, address.data(), address.size());
  }
  std::vector<std::vector<uint8_t>> addresses;
  for (uint32_t i = 0; i < count; ++i) addresses.push_back(hear(socket));
  say(socket, "r", 1);
  (void)hear(socket);
  const double used_s = processor_s();
  constexpr uint32_t kMeetings = 16;
  MeshThread<Member> thread{members};
  for (uint32_t to = 0; to < count; ++to) {  // a little at a time: others want answers meanwhile
    for (std::size_t i = 0; i < members.size(); ++i)
      if (numbers[i] != to) members[i]->meet(addresses[to]);
    if (to % kMeetings == 0)
      for (const auto& member : members) (void)member->turn();
  }
  const auto complete = [&] {
    return std::all_of(members.begin(), members.end(),
                       [&](const auto& member) { return member->signals() == count - 1; });
  };
  while (!complete()) thread.turn();
  say(socket, "d", 1);
  for (char next = 0; recv(socket, &next, 1, MSG_DONTWAIT) != 1;)
    thread.turn();  // the others still need answers
  MeshFigures figures;
  figures.processor_s = processor_s() - used_s;
  for (const auto& member : members) member->count(figures);
  figures.descriptors = open_descriptors();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  figures.resident_kib = static_cast<uint64_t>(used.ru_maxrss);
  say(socket, &figures, sizeof figures);
  (void)hear(socket);
  _exit(0);
}

// Arguments: RAIL, how many members, of how many processes.
template <class Member>
int run_mesh(int argc, char** argv, std::string rail, const char* what) {
  if (argc > 1) rail = argv[1];
  const auto count = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 16;
  const auto processes = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 4;
  must(count > 1 && processes > 0 && processes <= count, "the numbers of members and processes");
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  setrlimit(RLIMIT_NOFILE, &most);
  std::vector<int> sockets;
  for (uint32_t i = 0; i < processes; ++i) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
    if (fork_along() == 0) {
      close(pair[0]);
      for (const int other : sockets) close(other);
      mesh_process<Member>(pair[1], rail, count, i, processes);
    }
    close(pair[1]);
    sockets.push_back(pair[0]);
  }
  std::vector<std::vector<uint8_t>> addresses(count);
  for (uint32_t i = 0; i < count; ++i) addresses[i] = hear(sockets[i % processes]);
  for (const int socket : sockets)
    for (const auto& address : addresses) say(socket, address.data(), address.size());
  const auto of_all = [&](const char* letter) {
    if (letter != nullptr)
      for (const int socket : sockets) say(socket, letter, 1);
    else
      for (const int socket : sockets) (void)hear(socket);
  };
  of_all(nullptr);
  const uint64_t begin_ns = monotonic_now_ns();
  of_all("g");
  of_all(nullptr);
  const double took_s = static_cast<double>(monotonic_now_ns() - begin_ns) / 1e9;
  of_all("e");
  MeshFigures all;
  for (const int socket : sockets) {
    MeshFigures one;
    unpack_plain(hear(socket), one);
    all.processor_s += one.processor_s;
    all.connections += one.connections;
    all.evictions += one.evictions;
    all.breaks += one.breaks;
    all.descriptors = std::max(all.descriptors, one.descriptors);
    all.resident_kib = std::max(all.resident_kib, one.resident_kib);
  }
  fmt::print(
      "{}: {} {} of {} processes connected to each other in {:.2f} s ({:.2f} s of processors): {} ends of "
      "connections "
      "open, {} closed for others, {} broken; at most {} descriptors and {} MiB a process\n",
      rail, count, what, processes, took_s, all.processor_s, all.connections, all.evictions, all.breaks,
      all.descriptors, all.resident_kib >> 10);
  of_all("q");
  std::fflush(nullptr);
  while (wait(nullptr) > 0) {
  }
  _exit(0);
}

}  // namespace towline::bench
