// Windows of a communicator. Making and closing one are operations that all ranks take part in.
#include "base/error.h"
#include "collectives/communicator.h"

namespace towline::collectives {

// Operations that were started are before it, on every rank.
void Communicator::wait_for_queued() {
  std::unique_lock lock(queue_mutex_);
  queue_changed_.wait(lock, [&] { return queued_.load() == 0; });
}

towline_collective_window* Communicator::open_window(void* address, uint64_t bytes) {
  if (finishes_here()) fail(Status::kBusy, "a window can't be made in a function of a work");
  std::string text;
  if (const Status status = usable(text); is_error(status)) fail(status, "{}", text);
  if (table_->window_open == nullptr)
    fail(Status::kUnsupported, "backend {} has no windows", options_.backend);
  const Deadline deadline = Deadline::after(monotonic_now_ns(), timeout_ns());
  wait_for_queued();
  const std::lock_guard lock(perform_mutex_);
  begin_backend_call();
  towline_collective_window* window = nullptr;
  check_backend(table_->window_open(backend_, address, bytes, number_++, deadline.ns(), &window), "window");
  return window;
}

void Communicator::close_window(towline_collective_window* window, uint64_t timeout_ns) {
  if (finishes_here()) fail(Status::kBusy, "a window can't be closed in a function of a work");
  wait_for_queued();
  const std::lock_guard lock(perform_mutex_);
  begin_backend_call();
  const Deadline deadline = Deadline::after(monotonic_now_ns(), timeout_ns);
  check_backend(table_->window_close(window, number_++, deadline.ns()), "window");
}

}  // namespace towline::collectives
