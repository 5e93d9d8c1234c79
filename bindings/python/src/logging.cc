// The library's messages, kept for a thread of Python's. The sink must not wait for the GIL: a thread that has it may wait
// for a lock that the thread which logs holds.
#include <towline/observe.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "core.h"

namespace towline::python {

namespace {

constexpr size_t kMostWaiting = 1024;

struct Log {
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::pair<uint32_t, std::string>> messages;
  uint64_t dropped = 0;
  bool stopped = false;
};

// This process's log; never freed, since a thread may log as long as it runs.
Log* current = nullptr;

void keep(void* context, uint32_t level, const char* message, size_t bytes) {
  Log& log = *static_cast<Log*>(context);
  {
    const std::lock_guard lock(log.mutex);
    try {
      if (log.messages.size() < kMostWaiting)
        log.messages.emplace_back(level, std::string(message, bytes));
      else
        ++log.dropped;
    } catch (const std::bad_alloc&) {
      ++log.dropped;
    }
  }
  log.came.notify_one();
}

void start() {
  if (current == nullptr) current = new Log;
  current->stopped = false;
  const WithoutGil without_gil;
  towline_set_log_sink(keep, current);
}

void stop() {
  Log& log = *current;
  const WithoutGil without_gil;
  towline_set_log_sink(nullptr, nullptr);
  {
    const std::lock_guard lock(log.mutex);
    log.stopped = true;
  }
  log.came.notify_all();
}

// Waits for some: [(level, message)]; None after stop() once all were given.
nb::object next() {
  Log& log = *current;
  std::deque<std::pair<uint32_t, std::string>> messages;
  uint64_t dropped = 0;
  {
    const WithoutGil without_gil;
    std::unique_lock lock(log.mutex);
    log.came.wait(lock, [&] { return log.stopped || !log.messages.empty(); });
    messages.swap(log.messages);
    dropped = std::exchange(log.dropped, 0);
  }
  if (messages.empty()) return nb::none();
  nb::list list;
  for (const auto& [level, message] : messages)
    list.append(nb::make_tuple(level, text(message.data(), message.size())));
  if (dropped != 0) {
    const std::string note = std::to_string(dropped) + " messages were dropped: too many came at once";
    list.append(nb::make_tuple(uint32_t{TOWLINE_LOG_WARNING}, text(note.data(), note.size())));
  }
  return std::move(list);
}

// In a forked child, where no thread takes them, and the parent's locks may be held.
void forget() {
  current = nullptr;
  towline_set_log_sink(nullptr, nullptr);
}

}  // namespace

void bind_logging(nb::module_& module) {
  define(module, "_start_log", &start);
  define(module, "_stop_log", &stop);
  define(module, "_next_logs", &next);
  define(module, "_forget_log", &forget);
}

}  // namespace towline::python
