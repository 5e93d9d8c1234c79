// A network between two processes that can stand still: passes TCP connections on to a port of this host, and
// on command keeps what comes on those that are open, until it is told to let it go on. Or one that is cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace towline::faults {

// What a network that is cut does with bytes that arrive.
enum class Cut : uint8_t {
  kSwallows,  // takes them: the sender's kernel believes that they have arrived
  kStands,    // leaves them to the sender, as a cable that is pulled out does
};

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
  // Bytes in both directions.
  [[nodiscard]] uint64_t passed() const { return passed_; }
  // Nothing passes in any direction once so many more bytes have. A connection that is open then, or is made before
  // heal(), never carries anything again, nor is its end passed on.
  void cut_after(uint64_t bytes, Cut how);
  [[nodiscard]] bool is_cut();
  void heal();

 private:
  // One direction of a connection.
  struct Way {
    int from = -1;
    int to = -1;
    bool ended = false;  // from's side has
    bool end_passed_on = false;
    std::vector<char> kept;
    std::size_t sent = 0;  // of it
    bool refused = false;  // to's side takes nothing any more
  };
  struct Flow {
    Way up;    // from the client
    Way down;  // to the client
    bool stalled = false;
    bool was_stalled = false;
    bool cut = false;
  };

  void run();
  void admit();
  static void close_both(const Flow& flow);
  [[nodiscard]] bool takes(const Flow& flow, const Way& way) const;
  [[nodiscard]] static bool gives(const Flow& flow, const Way& way);
  static void take(Way& way);
  void give(Way& way);
  void cut();

  const uint16_t to_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> passed_{0};
  std::mutex mutex_;
  std::list<Flow> flows_;
  uint64_t cut_at_ = UINT64_MAX;  // of passed_
  Cut how_ = Cut::kSwallows;
  bool cut_ = false;
  std::thread thread_;
};

}  // namespace towline::faults
