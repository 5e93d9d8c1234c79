// A network between two processes that can stand still: passes TCP connections on to a port of this host, and
// on command keeps what comes on those that are open, until it is told to let it go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace towline::faults {

class StallingProxy {
 public:
  explicit StallingProxy(uint16_t to);
  StallingProxy(const StallingProxy&) = delete;
  StallingProxy& operator=(const StallingProxy&) = delete;
  ~StallingProxy();

  [[nodiscard]] uint16_t port() const { return port_; }
  // Keeps back everything that clients send on the connections that are open now, their end too. New ones pass.
  void stall();
  // Forwards the kept bytes, then the end.
  void release();
  [[nodiscard]] uint64_t kept_bytes();
  // The servers have ended all connections that stood still.
  [[nodiscard]] bool all_ended();

 private:
  struct Flow {
    int client = -1;
    int server = -1;
    bool stalled = false;
    bool was_stalled = false;
    bool client_ended = false;
    bool end_passed_on = false;
    std::vector<char> kept;  // from the client
    std::size_t sent = 0;    // of it
  };

  void run();
  void admit();
  void take_from_client(Flow& flow);
  void give_to_server(Flow& flow);
  bool pass_to_client(Flow& flow);

  const uint16_t to_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::list<Flow> flows_;
  std::thread thread_;
};

}  // namespace towline::faults
