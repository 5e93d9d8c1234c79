#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "gpu/fake/fake_device.h"

namespace towline::cuda::fake {

namespace {

struct Living {
  std::mutex mutex;
  std::set<FakeStream*> streams;
};

Living& living() {
  static Living instance;
  return instance;
}

}  // namespace

FakeStream::FakeStream(uint32_t gpu, bool green) : gpu_(gpu), green_(green), thread_([this] { run(); }) {
  const std::lock_guard lock(living().mutex);
  living().streams.insert(this);
}

bool FakeStream::lives(const void* stream) {
  const std::lock_guard lock(living().mutex);
  return living().streams.count(static_cast<FakeStream*>(const_cast<void*>(stream))) != 0;
}

void FakeStream::drain_all(uint32_t gpu) {
  for (bool waited = true; waited;) {
    waited = false;
    {
      const std::lock_guard lock(living().mutex);
      for (FakeStream* const one : living().streams) {
        const std::lock_guard own(one->mutex_);
        waited = waited || (one->gpu_ == gpu && (one->busy_ || !one->queue_.empty()));
      }
    }
    if (waited) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(living().mutex);
    living().streams.erase(this);
  }
  hold(false);
  drain();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::put(Work work) {
  const std::lock_guard lock(mutex_);
  if (graph_ != nullptr)
    graph_->steps.push_back({std::move(work), nullptr});
  else
    queue_.push_back(std::move(work));
  changed_.notify_all();
}

void FakeStream::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  changed_.notify_all();
}

void FakeStream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void FakeStream::record() {
  static std::atomic<uint64_t> last{0};
  const std::lock_guard lock(mutex_);
  graph_ = new Graph{++last, {}, {}};
}

FakeStream::Graph* FakeStream::end_record() {
  Graph* made = nullptr;
  {
    const std::lock_guard lock(mutex_);
    made = std::exchange(graph_, nullptr);
  }
  for (FakeStream* const one : made->joined) {
    const std::lock_guard lock(one->mutex_);
    one->graph_ = nullptr;
  }
  return made;
}

void FakeStream::join(FakeStream& other, uint64_t number) {
  if (&other == this) return;
  const std::scoped_lock lock(mutex_, other.mutex_);
  if (other.graph_ == nullptr || other.graph_->number != number || graph_ == other.graph_) return;
  graph_ = other.graph_;
  graph_->joined.push_back(this);
}

uint64_t FakeStream::recording() {
  const std::lock_guard lock(mutex_);
  return graph_ == nullptr ? 0 : graph_->number;
}

void FakeStream::replay(const Graph& graph) {
  for (const Step& step : graph.steps) put(step.at_launch != nullptr ? step.at_launch() : step.work);
}

size_t FakeStream::put_at_launch(std::function<Work()> make) {
  const std::lock_guard lock(mutex_);
  graph_->steps.push_back({nullptr, std::move(make)});
  return graph_->steps.size() - 1;
}

void FakeStream::take_out(size_t step) {
  const std::lock_guard lock(mutex_);
  graph_->steps[step] = {[] {}, nullptr};
}

void FakeStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || (!queue_.empty() && !held_); });
    if (stop_) return;
    const Work next = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    next();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace towline::cuda::fake
