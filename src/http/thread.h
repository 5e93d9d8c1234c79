// A client with the thread that serves it: commands from other threads, timers and requests, in turns.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "base/sync/timers.h"
#include "http/client.h"

namespace towline::http {

class Thread {
 public:
  // Called on the thread.
  struct Hooks {
    std::function<void()> turn;                   // once a turn, after its commands and timers
    std::function<void(const char* why)> failed;  // an action threw this; does not throw itself
    std::function<void()> last{};                 // it ends: commands that came too late run after this
  };

  // Throws Error. Nothing runs before start().
  explicit Thread(Options options) : client_(std::move(options)) {}
  ~Thread();  // ends and joins it
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void start(Hooks hooks);

  // ---- any thread
  // False: it has ended, and the command is dropped.
  bool run(std::function<void()> command);
  // The turn under way is the last.
  void end() noexcept;
  [[nodiscard]] bool is_this() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  // Waits for its end. Once; not on it.
  void join();

  // ---- on it
  [[nodiscard]] Client& client() noexcept { return client_; }
  [[nodiscard]] Timers& timers() noexcept { return timers_; }

 private:
  void loop() noexcept;

  Client client_;
  Timers timers_;
  Commands commands_;
  Hooks hooks_;
  std::atomic<bool> over_{false};
  bool told_ = false;  // by itself, since it last looked for commands; on the thread
  std::thread thread_;
};

}  // namespace towline::http
