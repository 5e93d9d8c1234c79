#include "storage/posix/job_queue.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/clock.h"
#include "storage/posix/connection.h"

namespace towline::posix {

namespace {

constexpr uint64_t kSlowWriteNs = 2'000'000;      // a slice's copy takes a tenth of that
constexpr uint64_t kWatchEveryBytes = 512 << 10;  // reading the clock twice costs a twentieth of 4 KiB
constexpr uint64_t kBatchedBytes = 16 << 10;      // of a block, above which a batch gains nothing
constexpr uint64_t kLeastBatch = 8;
constexpr uint64_t kManyBytes = 32 << 20;  // of a cached read, which all threads but one help with
constexpr uint8_t kRetries = 8;
// Hand-over sizes: the least that is worth waking a thread, the piece with which the worker tests whether
// data is cached, and the piece that the worker takes while no thread is free.
constexpr uint64_t kLeastHandedOver = 64 << 10;
constexpr uint64_t kFirstLook = 16 << 10;
constexpr uint64_t kMeanwhile = 128 << 10;

// Whether a write held its thread up: it took long and the thread slept meanwhile. One that was only
// preempted says nothing about the disk. Counting sleeps costs as much as writing a page, so that is
// done only for a while after a write that took long.
class WriteWatch {
 public:
  explicit WriteWatch(const File& file) noexcept
      : file_(file), begin_ns_(monotonic_now_ns()), sleeps_(file.watched(begin_ns_) ? sleeps() : kUnknown) {}
  // The write is over; tells the file. True: it held its thread up.
  bool ended() const noexcept {
    const uint64_t now_ns = monotonic_now_ns();
    if (now_ns - begin_ns_ <= kSlowWriteNs) return false;
    file_.note_long_write(now_ns);
    const bool held_up = sleeps_ != kUnknown && sleeps() != sleeps_;
    if (held_up) file_.note_slow_write(now_ns);
    return held_up;
  }

 private:
  static constexpr long kUnknown = -1;

  static long sleeps() noexcept {
    rusage usage = {};
    return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
  }

  const File& file_;
  uint64_t begin_ns_;
  long sleeps_;
};

}  // namespace

// ---- inside post

namespace {

bool move_block_by_block(Prepared& prepared, const towline_submit_args& args, int flags) noexcept {
  plugin::Cursor cursor(*prepared.plan, args.begin, args.end);
  Slice slice;
  Operation operation;
  for (;;) {
    slice.first = 0;
    slice.count = static_cast<uint32_t>(cursor.next(slice.segments, kSliceSegments, kSliceBytes));
    if (slice.count == 0) return true;
    Cutter cutter(slice, prepared.files.data(), prepared.write());
    while (cutter.next(operation)) {
      if (operation.attempt(flags) != static_cast<int64_t>(operation.bytes)) return false;
    }
  }
}

// Block by block: few of them could be had with one call, see JobQueue::get_batch.
bool read_in_batches(Prepared& prepared, const towline_submit_args& args, BatchReader& batch) noexcept {
  plugin::Cursor cursor(*prepared.plan, args.begin, args.end);
  towline_segment segments[BatchReader::kOperations];
  while (const size_t count = cursor.next(segments, BatchReader::kOperations, args.end - args.begin)) {
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& one = segments[i];
      batch.add(prepared.files[one.remote_region]->fd(), prepared.batch_files[one.remote_region], one.local,
                one.length, one.remote);
    }
    if (!batch.run()) return false;
  }
  return true;
}

}  // namespace

int32_t try_inline(Prepared& prepared, const towline_submit_args& args) noexcept {
  const bool write = prepared.write();
  std::optional<WriteWatch> watch;
  if (write) {
    if (prepared.files[0]->was_slow()) return TOWLINE_AGAIN;
    // Posts of one plan do not overlap.
    prepared.unwatched += args.end - args.begin;
    if (prepared.unwatched >= kWatchEveryBytes) {
      prepared.unwatched = 0;
      watch.emplace(*prepared.files[0]);
    }
  }
  const int flags = write ? 0 : RWF_NOWAIT;
  bool done = false;
  if (prepared.single_fd >= 0) {
    const auto offset = static_cast<off_t>(prepared.single_offset);
    const ssize_t result =
        write ? ::pwrite(prepared.single_fd, prepared.single.iov_base, prepared.single.iov_len, offset)
              : ::preadv2(prepared.single_fd, &prepared.single, 1, offset, flags);
    done = result == static_cast<ssize_t>(prepared.single.iov_len);
  } else if (prepared.batch != nullptr && prepared.batch->try_lock()) {
    done = read_in_batches(prepared, args, *prepared.batch);
    prepared.batch->unlock();
  } else {
    done = move_block_by_block(prepared, args, flags);
  }
  if (!done) return TOWLINE_AGAIN;
  if (watch) watch->ended();
  return TOWLINE_OK;
}

// ---- life

JobQueue::JobQueue(const plugin::Host& host, uint32_t worker, const Settings& settings, Pool& pool)
    : host_(host), worker_(worker), settings_(settings), pool_(pool) {}

JobQueue::~JobQueue() {
  if (queue_ != nullptr) host_.unwatch(worker_, queue_->fd());
  if (direct_queue_ != nullptr) host_.unwatch(worker_, direct_queue_->fd());
}

void JobQueue::open_queue() {
  queue_tried_ = true;
  const Engine engine = settings_.engine;
  std::string reason;
  if (engine == Engine::kAuto || engine == Engine::kUring) {
    queue_ = KernelQueue::open_uring(settings_, reason);
    if (queue_ == nullptr) no_queue_ = "uring: " + reason;
  }
  if (queue_ == nullptr && (engine == Engine::kAuto || engine == Engine::kAio)) {
    queue_ = KernelQueue::open_aio(settings_, false, reason);
    if (queue_ == nullptr) no_queue_ += (no_queue_.empty() ? "aio: " : "; aio: ") + reason;
  }
  if (queue_ == nullptr) return;
  operations_ = std::make_unique<Operation[]>(settings_.queue_depth);
  for (uint32_t i = 0; i < settings_.queue_depth; ++i) release(operations_[i]);
  if (!watch(*queue_)) {
    queue_.reset();
    no_queue_ = "its descriptor can't be watched";
  }
}

// It is optional. A user who explicitly chose io_uring gets only io_uring.
void JobQueue::open_direct_queue() {
  direct_queue_tried_ = true;
  if (settings_.engine != Engine::kAuto || settings_.sqpoll || settings_.register_files ||
      settings_.register_buffers || queue_ == nullptr || queue_->engine() != Engine::kUring)
    return;
  std::string reason;
  direct_queue_ = KernelQueue::open_aio(settings_, true, reason);
  if (direct_queue_ == nullptr) no_queue_ = "aio: " + reason;
  if (direct_queue_ != nullptr && !watch(*direct_queue_)) direct_queue_.reset();
}

bool JobQueue::watch(const KernelQueue& queue) noexcept {
  return host_.watch(worker_, queue.fd(), queue.events(), on_ready, this) == TOWLINE_OK;
}

void JobQueue::get_ready(Prepared& prepared) {
  const Engine engine = settings_.engine;
  if (!queue_tried_ && engine != Engine::kThreads && engine != Engine::kPread) open_queue();
  if (queue_ == nullptr && (engine == Engine::kUring || engine == Engine::kAio)) {
    throw plugin::Failure(Status::kUnsupported, fmt::format("tuning.posix.engine = {} can't be had here: {}",
                                                            engine_name(engine), no_queue_));
  }
  if (prepared.direct && !direct_queue_tried_) open_direct_queue();
  if (queue_ == nullptr) return;
  if (settings_.register_files) attach_files(prepared);
  const towline_list& local = *prepared.plan->local;
  if (settings_.register_buffers) prepared.buffers.reserve(local.region_count);
  for (uint64_t i = 0; settings_.register_buffers && prepared.registered && i < local.region_count; ++i)
    prepared.buffers.push_back(queue_->attach_buffer(local.regions[i].address, local.regions[i].bytes));
}

void JobQueue::attach_files(Prepared& prepared) {
  const auto attach = [&](int fd) {
    queue_->attach_file(fd);
    prepared.attached.push_back(fd);
  };
  prepared.attached.reserve(2 * prepared.files.size());
  for (const File* file : prepared.files) {
    attach(file->fd());
    if (file->direct()) attach(file->direct_fd());
  }
}

void JobQueue::get_batch(Prepared& prepared) {
  if (prepared.write() || settings_.engine != Engine::kAuto) return;
  plugin::Cursor cursor(*prepared.plan);
  Slice slice;
  Operation operation;
  uint64_t blocks = 0;
  uint64_t calls = 0;
  do {
    slice.first = 0;
    slice.count = static_cast<uint32_t>(cursor.next(slice.segments, kSliceSegments, kSliceBytes));
    blocks += slice.count;
    Cutter cutter(slice, prepared.files.data(), false);
    while (cutter.next(operation)) {
      if (operation.bytes > kBatchedBytes * operation.iov_count) return;
      ++calls;
    }
  } while (!cursor.done());
  // Neighbours in the file go with one call.
  if (blocks < kLeastBatch || calls * 4 < blocks * 3) return;
  if (!batch_tried_ && queue_ != nullptr && queue_->engine() == Engine::kUring) batch_ = BatchReader::open();
  batch_tried_ = true;
  if (batch_ == nullptr) return;
  prepared.batch_files.reserve(prepared.files.size());
  for (const File* file : prepared.files) prepared.batch_files.push_back(batch_->attach_file(file->fd()));
  prepared.batch = batch_.get();
}

void JobQueue::let_go(Prepared& prepared) noexcept {
  for (size_t i = 0; i < prepared.batch_files.size(); ++i) batch_->detach_file(prepared.files[i]->fd());
  for (const int fd : prepared.attached) queue_->detach_file(fd);
  for (const int buffer : prepared.buffers) queue_->detach_buffer(buffer);
}

// ---- jobs come and go

int32_t JobQueue::submit(Prepared& prepared, const towline_submit_args& args) noexcept try {
  if (free_jobs_ == nullptr) {
    active_.reserve(jobs_.size() + 1);
    runnable_.reserve(jobs_.size() + 1);
    jobs_.push_back(std::make_unique<Job>());
    free_jobs_ = jobs_.back().get();
    free_jobs_->next = nullptr;
  }
  Job& job = *free_jobs_;
  Job* const rest = job.next;
  job.begin(prepared, args);
  free_jobs_ = rest;
  job.connection = reinterpret_cast<Connection*>(prepared.connection);
  active_.push_back(&job);
  job.hand_over = (args.flags & TOWLINE_SUBMIT_HAND_OVER) != 0 && settings_.engine == Engine::kAuto &&
                  !prepared.direct && job.bytes() >= kLeastHandedOver && pool_.most_handed() != 0;
  choose_mode(job);
  choose_helpers(job);
  make_runnable(job);
  if (job.mode == Job::Mode::kDrive) return TOWLINE_IN_PROGRESS;
  uint64_t budget = kSliceBytes;
  job.handed_on = step(job, budget);  // it must not end before this call has
  return TOWLINE_IN_PROGRESS;
} catch (const std::exception&) {
  return TOWLINE_OUT_OF_MEMORY;
}

void JobQueue::choose_mode(Job& job) noexcept {
  const Prepared& prepared = job.prepared();
  switch (settings_.engine) {
    case Engine::kPread:
      job.mode = Job::Mode::kDrive;
      return;
    case Engine::kThreads:
      job.mode = Job::Mode::kPool;
      return;
    case Engine::kUring:
    case Engine::kAio:
      job.mode = Job::Mode::kQueue;
      return;
    case Engine::kAuto:
      break;
  }
  if (prepared.direct) {
    job.mode = queue_ != nullptr ? Job::Mode::kQueue : Job::Mode::kPool;
    return;
  }
  job.mode = Job::Mode::kDrive;
  if (job.write() && (job.hand_over || prepared.files[0]->slow(monotonic_now_ns())))
    job.mode = Job::Mode::kPool;
}

void JobQueue::make_runnable(Job& job) noexcept {
  job.runnable = true;
  runnable_.push_back(&job);
  urgent_runnable_ += job.urgent ? 1 : 0;
}

// The worker's share goes; the job goes on without it, or is over.
void JobQueue::leave(Job& job) noexcept {
  job.runnable = false;
  std::erase(runnable_, &job);
  urgent_runnable_ -= job.urgent ? 1 : 0;
  if (job.pooled) {
    // Shares that no thread has begun are taken back, unless only threads do this job.
    const bool all_theirs = job.mode == Job::Mode::kPool && !job.stopped();
    for (uint32_t count = all_theirs ? 0 : pool_.take_back(job); count != 0; --count) (void)job.give_share();
  }
  if (job.give_share()) over(job);
}

// Nobody works on it.
void JobQueue::over(Job& job) noexcept {
  if (job.begin_sync()) {
    if (pool_.ask(job, 1)) return;
    job.failed_whole(Status::kOutOfMemory, ENOMEM);
  }
  std::erase(active_, &job);
  const uint64_t cookie = job.cookie;
  towline_part_result result = job.result();
  note_cost(job, result);
  job.connection->send_after(job.message, result);
  job.next = free_jobs_;
  free_jobs_ = &job;
  host_.complete(cookie, result);
}

void JobQueue::finished(Job& job) noexcept {
  (void)finished_.push(&job);
  host_.wake(worker_);
}

uint32_t JobQueue::collect_finished() noexcept {
  uint32_t done = 0;
  for (Job* job = finished_.pop_all_in_order(); job != nullptr; ++done) {
    Job* const rest = job->finished_next;
    over(*job);
    job = rest;
  }
  return done;
}

void JobQueue::cancel(uint64_t cookie) noexcept {
  for (Job* job : active_) {
    if (job->cookie != cookie) continue;
    job->stop(Status::kCancelled);
    for (uint32_t i = 0; operations_ != nullptr && i < settings_.queue_depth; ++i) {
      if (operations_[i].job == job) queue_->cancel(operations_[i]);
    }
    // Slices that wait for a thread wait no longer. Each entry taken back is a share; when all are back, the job may
    // have no share left and be among the finished.
    bool last = false;
    if (job->pooled && !job->runnable) {
      for (uint32_t count = pool_.take_back(*job); count != 0; --count) last = job->give_share();
    }
    if (last) over(*job);
    return;
  }
}

void JobQueue::close(const Connection& connection, Status status) noexcept {
  for (size_t i = active_.size(); i > 0; --i) {
    Job& job = *active_[i - 1];
    if (job.connection != &connection) continue;
    job.stop(status);
    for (uint32_t k = 0; operations_ != nullptr && k < settings_.queue_depth; ++k) {
      if (operations_[k].job == &job) queue_->cancel(operations_[k]);
    }
  }
  const auto mine = [&] {
    return std::any_of(active_.begin(), active_.end(),
                       [&](const Job* job) { return job->connection == &connection; });
  };
  while (mine()) {
    if (progress() != 0) continue;
    if (in_kernel_ != 0)
      (in_direct_queue_ != 0 ? direct_queue_ : queue_)->wait();
    else
      sched_yield();
  }
}

// ---- turning

bool JobQueue::has_work() const noexcept {
  if (!finished_.looks_empty()) return true;
  // Jobs that wait for room in the kernel are woken by what ends there.
  for (const Job* job : runnable_) {
    const bool waits = job->mode == Job::Mode::kQueue && free_operations_ == nullptr;
    if (!waits || job->handed_on || job->stopped()) return true;
  }
  return again_ != nullptr && in_kernel_ == 0;
}

const Job* JobQueue::first_handed() const noexcept {
  const auto found =
      std::find_if(runnable_.begin(), runnable_.end(), [](const Job* job) { return job->handed; });
  return found != runnable_.end() ? *found : nullptr;
}

// The next runnable job of this kind; at least one must be runnable.
Job& JobQueue::next_turn(bool urgent) noexcept {
  size_t& turn = turn_[urgent ? 1 : 0];
  do {
    turn = turn + 1 < runnable_.size() ? turn + 1 : 0;
  } while (runnable_[turn]->urgent != urgent);
  return *runnable_[turn];
}

uint32_t JobQueue::progress() noexcept {
  uint32_t done = collect_finished();
  if (in_kernel_ != 0 || again_ != nullptr) done += reap();
  uint64_t budget = kSliceBytes;
  size_t stuck[2] =
      {};  // in this pass, of the others and of the urgent: they wait for the kernel or a thread
  for (size_t steps = runnable_.size(); steps != 0 && budget != 0; --steps) {
    const size_t others = runnable_.size() - urgent_runnable_;
    const bool urgent_may = urgent_runnable_ > stuck[1];
    if (!urgent_may && others <= stuck[0]) break;
    const bool urgent = turns_.next(urgent_may, others > stuck[0]);
    Job& job = next_turn(urgent);
    // The worker copies only the oldest job that waits for a thread, a little at a time: it has other work.
    if (job.handed && (done != 0 || &job != first_handed())) {
      ++stuck[urgent ? 1 : 0];
      continue;
    }
    const uint64_t before = budget;
    const bool leaves = step(job, budget);
    if (leaves) leave(job);
    if (leaves || budget != before) {
      ++done;
      turns_.took(urgent, others != 0);
    } else {
      ++stuck[urgent ? 1 : 0];
    }
  }
  return done;
}

bool JobQueue::step(Job& job, uint64_t& budget) noexcept {
  if (job.handed_on) return true;
  switch (job.mode) {
    case Job::Mode::kDrive:
      return drive(job, budget);
    case Job::Mode::kQueue:
      return feed(job, budget);
    case Job::Mode::kPool:
      break;
  }
  if (job.stopped()) return true;
  const uint64_t slices = std::max<uint64_t>(job.bytes() / kSliceBytes, job.prepared().direct ? 4 : 1);
  // Threads that write to one file take turns at its lock.
  const uint32_t helpers = job.write() && !job.prepared().direct
                               ? 1
                               : static_cast<uint32_t>(std::min<uint64_t>(slices, pool_.most_threads()));
  job.pooled = true;
  if (job.hand_over && pool_.hand_over(job) != Pool::Handed::kNot) return true;
  if (!pool_.ask(job, helpers)) job.failed_whole(Status::kOutOfMemory, ENOMEM);
  return true;
}

// Threads that help the worker with a cached read: where there are processors for them, one for each slice's
// worth (on sixteen processors four bare threads read 4 MiB at 44 GB/s, the worker and one helper at 21; of 1
// MiB two threads on 32 read 60 GB/s, four 38, who wait for the last to begin). Large reads gain from threads
// that share processors with others as well, since they wait for memory.
uint32_t JobQueue::copy_helpers(uint64_t bytes) const noexcept {
  const uint32_t most = std::max(pool_.most_threads() - 1, 1u);
  if (bytes >= kManyBytes) return most;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(bytes / kSliceBytes, 1, std::clamp(settings_.spare_processors, 1u, most)));
}

void JobQueue::choose_helpers(Job& job) noexcept {
  if (active_.size() > 1) active_[0]->begun_ns = 0;  // another one costs it time
  if (job.mode != Job::Mode::kDrive || settings_.engine != Engine::kAuto || job.write() || job.hand_over ||
      job.bytes() < settings_.parallel_bytes)
    return;
  if (job.bytes() >= kManyBytes || sharing_of(job.bytes()).second()) {
    job.helpers = copy_helpers(job.bytes());
  }
  if (active_.size() == 1 && job.bytes() < kManyBytes) job.begun_ns = monotonic_now_ns();
}

void JobQueue::note_cost(const Job& job, const towline_part_result& result) noexcept {
  if (job.begun_ns == 0 || job.mode != Job::Mode::kDrive || result.status != TOWLINE_OK) return;
  sharing_of(job.bytes()).took(((monotonic_now_ns() - job.begun_ns) << 20) / job.bytes());
}

// One slice by plain system calls on this thread.
bool JobQueue::drive(Job& job, uint64_t& budget) noexcept {
  const Prepared& prepared = job.prepared();
  const bool write = job.write();
  if (job.helpers != 0 && !job.pooled) {
    job.pooled = true;
    (void)pool_.ask(job, job.helpers);
  }
  Slice slice;
  uint64_t most = job.slice_bytes();
  if (job.hand_over) most = kFirstLook;
  if (job.handed) most = kMeanwhile;
  if (!job.take(slice, std::min(budget, most))) return true;
  const uint64_t position = slice.position;
  Cutter cutter(slice, prepared.files.data(), write);
  Operation operation;
  std::optional<WriteWatch> watch;
  if (write && settings_.engine == Engine::kAuto) watch.emplace(*prepared.files[0]);
  while (!slice.empty()) {
    if (job.stopped()) {
      job.left(slice.position);
      break;
    }
    const uint32_t first = slice.first;
    const uint64_t at = slice.position;
    (void)cutter.next(operation);
    bool waits = false;
    if (!run_here(job, operation, waits)) break;
    if (waits) {
      slice.count += slice.first - first;
      slice.first = first;
      slice.position = at;
      slice.skip(operation.done);
      fall_back(job, slice);
      break;
    }
  }
  if (job.hand_over && job.mode == Job::Mode::kDrive && !job.stopped() && hand_over(job)) return true;
  const uint64_t moved = slice.position - position;
  budget -= std::min(budget, std::max<uint64_t>(moved, 1));
  if (watch && watch->ended()) job.mode = Job::Mode::kPool;
  return false;
}

// A cached read goes to a thread. True: it is there, and needs the worker no more.
bool JobQueue::hand_over(Job& job) noexcept {
  job.hand_over = false;
  const Pool::Handed handed = pool_.hand_over(job);
  job.pooled = handed != Pool::Handed::kNot;
  job.handed = handed == Pool::Handed::kLater;
  if (handed == Pool::Handed::kBegun) job.mode = Job::Mode::kPool;
  return handed == Pool::Handed::kBegun;
}

// False: it failed, and the job knows. `waits`: it would have to wait; what it did move is accounted for.
bool JobQueue::run_here(Job& job, Operation& operation, bool& waits) noexcept {
  if (!take_bounce(pool_.buffers(), operation)) {
    job.failed(Status::kOutOfMemory, ENOMEM, operation.position, operation.position + operation.plan_bytes);
    return false;
  }
  const int flags = operation.write || settings_.engine == Engine::kPread ? 0 : RWF_NOWAIT;
  int64_t result = 1;
  while (!operation.finished() && result > 0) {
    result = operation.attempt(flags);
    if (result > 0) operation.advance(static_cast<uint64_t>(result));
  }
  drop_bounce(pool_.buffers(), operation);
  if (operation.finished()) {
    job.moved(operation.plan_bytes);
    return true;
  }
  if (flags != 0 && would_wait(result)) {
    job.moved(operation.done);
    if (job.cached) {
      job.left(operation.position + operation.done);
      job.stop(Status::kAgain);
    }
    waits = !job.cached;
    return waits;
  }
  job.failed(operation, result);
  return false;
}

// The rest of the job waits for the device.
void JobQueue::fall_back(Job& job, const Slice& rest) noexcept {
  job.put_back(rest);
  if (job.pooled) {
    for (uint32_t count = pool_.take_back(job); count != 0; --count) (void)job.give_share();
  }
  job.mode = queue_ != nullptr ? Job::Mode::kQueue : Job::Mode::kPool;
}

// ---- the kernel's queue

void JobQueue::release(Operation& operation) noexcept {
  operation.job = nullptr;
  operation.next = free_operations_;
  free_operations_ = &operation;
}

void JobQueue::push(Operation& operation) noexcept {
  operation.in_direct_queue = direct_queue_ != nullptr && operation.fd == operation.file->direct_fd() &&
                              !operation.job->waits && !operation.file->always_waits();
  if ((operation.in_direct_queue ? direct_queue_ : queue_)->push(operation)) {
    ++in_kernel_;
    in_direct_queue_ += operation.in_direct_queue ? 1 : 0;
    return;
  }
  operation.next = again_;
  again_ = &operation;
}

void JobQueue::flush() noexcept {
  if (direct_queue_ != nullptr) direct_queue_->flush();
  queue_->flush();
}

bool JobQueue::feed(Job& job, uint64_t& budget) noexcept {
  const Prepared& prepared = job.prepared();
  bool left = true;
  Slice slice;
  while (free_operations_ != nullptr && again_ == nullptr && budget != 0) {
    if (!job.take(slice)) {
      left = false;
      break;
    }
    Cutter cutter(slice, prepared.files.data(), job.write());
    while (free_operations_ != nullptr && !slice.empty()) {
      Operation& operation = *free_operations_;
      free_operations_ = operation.next;
      (void)cutter.next(operation);
      operation.job = &job;
      if (!take_bounce(pool_.buffers(), operation)) {
        job.failed(Status::kOutOfMemory, ENOMEM, operation.position,
                   operation.position + operation.plan_bytes);
        release(operation);
        break;
      }
      if (!prepared.buffers.empty() && operation.bounce == nullptr && operation.iov_count == 1)
        operation.buffer = prepared.buffers[operation.local_region];
      job.add_share();
      // Buffered data may be copied during the submit call.
      if (!prepared.direct) budget -= std::min(budget, operation.bytes);
      push(operation);
    }
    job.put_back(slice);
  }
  flush();
  return !left || job.stopped();
}

uint32_t JobQueue::reap() noexcept {
  KernelQueue::Ended ended[kReapAtOnce];
  uint32_t done = 0;
  for (Operation* operation = std::exchange(again_, nullptr); operation != nullptr;) {
    Operation* const rest = operation->next;
    push(*operation);
    operation = rest;
  }
  for (KernelQueue* queue : {direct_queue_.get(), queue_.get()}) {
    for (size_t count = queue != nullptr ? kReapAtOnce : 0; count == kReapAtOnce;) {
      count = queue->reap(ended, kReapAtOnce);
      in_kernel_ -= static_cast<uint32_t>(count);
      for (size_t i = 0; i < count; ++i) this->ended(*ended[i].operation, ended[i].result);
      done += static_cast<uint32_t>(count);
    }
  }
  flush();
  return done;
}

void JobQueue::ended(Operation& operation, int64_t result) noexcept {
  Job& job = *operation.job;
  in_direct_queue_ -= operation.in_direct_queue ? 1 : 0;
  // The thread that submitted it may have ended, which takes its operations along: they are begun again. The
  // kernel then says EFAULT as well, as it does of bad memory.
  if (operation.in_direct_queue && would_wait(result)) {
    job.waits = true;
    if (result == -EOPNOTSUPP) operation.file->note_always_waits();
    result = -EAGAIN;
  }
  const bool may_retry = result == -EFAULT && operation.retries < kRetries;
  if (may_retry) ++operation.retries;
  const bool cut_off = may_retry || result == -ECANCELED || result == -EINTR || result == -EAGAIN;
  if (result > 0) operation.advance(static_cast<uint64_t>(result));
  if (!operation.finished() && !operation.met_end() && !job.stopped() && (result > 0 || cut_off)) {
    push(operation);
    return;
  }
  drop_bounce(pool_.buffers(), operation);
  if (operation.finished()) {
    job.moved(operation.plan_bytes);
  } else if (cut_off || (result > 0 && job.stopped())) {
    job.moved(operation.plan_done());
    job.left(operation.position + operation.plan_done());
  } else {
    job.failed(operation, result);
  }
  release(operation);
  if (job.give_share()) over(job);
}

void JobQueue::on_ready(void* self, uint32_t) noexcept { (void)static_cast<JobQueue*>(self)->reap(); }

std::string JobQueue::describe() const {
  return fmt::format(
      R"({{"storage": "posix", "engine": "{}", "queue": {}, "direct_queue": {}, "no_queue": "{}", "jobs": {}, "in_kernel": {}, "threads": {}}})",
      engine_name(settings_.engine), queue_ != nullptr ? queue_->describe() : "null",
      direct_queue_ != nullptr ? direct_queue_->describe() : "null", no_queue_, active_.size(), in_kernel_,
      pool_.threads());
}

}  // namespace towline::posix
