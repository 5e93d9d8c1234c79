#include "http/thread.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace towline::http {

namespace {

constexpr uint64_t kIdlePollNs = 60 * kSecondNs;

}  // namespace

Thread::~Thread() {
  end();
  join();
}

void Thread::start(Hooks hooks) {
  hooks_ = std::move(hooks);
  thread_ = std::thread([this] { loop(); });
}

bool Thread::run(std::function<void()> command) {
  if (!commands_.push(std::move(command))) return false;
  if (is_this())
    told_ = true;  // it looks before it waits
  else
    client_.wake();
  return true;
}

void Thread::end() noexcept {
  over_ = true;
  client_.wake();
}

void Thread::join() {
  if (thread_.joinable()) thread_.join();
}

void Thread::loop() noexcept {
  while (!over_) {
    told_ = false;
    commands_.run(hooks_.failed);
    timers_.run(hooks_.failed);
    run_action(hooks_.turn, hooks_.failed);
    if (over_) break;
    const uint64_t now_ns = monotonic_now_ns();
    const uint64_t next_ns = timers_.next_ns();
    client_.poll(told_ || next_ns <= now_ns ? 0 : std::min(next_ns - now_ns, kIdlePollNs), hooks_.failed);
  }
  commands_.close();
  if (hooks_.last) run_action(hooks_.last, hooks_.failed);
  commands_.run(hooks_.failed);
}

}  // namespace towline::http
