#include "transports/rdma/worker_engine.h"

#include <algorithm>
#include <new>

#include "transports/rdma/connection.h"

namespace towline::rdma {

void WorkerEngine::Queue::push(Job* job) noexcept {
  job->next = nullptr;
  (tail == nullptr ? head : tail->next) = job;
  tail = job;
}

Job* WorkerEngine::Queue::pop() noexcept {
  Job* const job = head;
  if (job == nullptr) return nullptr;
  head = job->next;
  if (head == nullptr) tail = nullptr;
  return job;
}

WorkerEngine::WorkerEngine(const plugin::Host& host, const fabric::EngineOptions& options,
                           std::vector<std::unique_ptr<fabric::Domain>> rails)
    : host_(host),
      engine_(options, std::move(rails), static_cast<fabric::EngineHost&>(*this)),
      max_jobs_(options.max_transfers) {
  for (std::size_t rail = 0; rail < engine_.rails(); ++rail)
    registers_beside_ = registers_beside_ && engine_.traits(rail).registers_beside;
}

WorkerEngine::~WorkerEngine() = default;

// ---- memory

fabric::LocalMemory WorkerEngine::register_memory(const fabric::MemoryToRegister& memory) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!registers_beside_) lock.lock();
  return engine_.register_memory(memory);
}

void WorkerEngine::deregister_memory(const fabric::LocalMemory& memory) noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!registers_beside_) lock.lock();
  engine_.deregister_memory(memory);
}

std::vector<fabric::RailCounters> WorkerEngine::counters() const {
  const std::lock_guard lock(mutex_);
  std::vector<fabric::RailCounters> all;
  for (std::size_t rail = 0; rail < engine_.rails(); ++rail) all.push_back(engine_.counters(rail));
  return all;
}

// ---- peers

Handle WorkerEngine::add_peer(const fabric::EngineAddress& address, Connection& connection) {
  const std::lock_guard lock(mutex_);
  const Handle peer = engine_.add_peer(address);
  if (known_.size() <= peer.index) known_.resize(peer.index + 1);
  losses_.reserve(known_.size());
  known_[peer.index] = {peer, &connection};
  return peer;
}

void WorkerEngine::remove_peer(Handle peer, bool lost, const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (lost) engine_.peer_lost(peer, why);
  engine_.remove_peer(peer);
  if (connection_of(peer) != nullptr) known_[peer.index] = {};
}

void WorkerEngine::on_control(Handle peer, std::span<const uint8_t> message) noexcept {
  const std::lock_guard lock(mutex_);
  engine_.on_control(peer, message);
}

Connection* WorkerEngine::connection_of(Handle peer) const noexcept {
  if (peer.index >= known_.size() || !(known_[peer.index].peer == peer)) return nullptr;
  return known_[peer.index].connection;
}

void WorkerEngine::send_control(Handle peer, std::span<const uint8_t> message) noexcept {
  if (Connection* connection = connection_of(peer)) connection->send_control(message);
}

void WorkerEngine::lost(Handle peer, Status, std::string_view why) noexcept {
  Loss& loss = losses_.emplace_back(Loss{peer, {}});  // add_peer() has made room
  try {
    loss.why = why;
  } catch (const std::bad_alloc&) {  // without a reason
  }
}

// ---- parts

Job* WorkerEngine::take_job() noexcept {
  if (Job* const job = free_) {
    free_ = job->next;
    return job;
  }
  if (jobs_.size() >= max_jobs_) return nullptr;
  try {
    jobs_.push_back(std::make_unique<Job>());
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  jobs_.back()->index = static_cast<uint32_t>(jobs_.size() - 1);
  return jobs_.back().get();
}

std::size_t WorkerEngine::next_segments(void* context, towline_segment* out, std::size_t capacity) {
  return static_cast<Job*>(context)->cursor->next(out, capacity, UINT64_MAX);
}

Status WorkerEngine::start(Connection& connection, const towline_submit_args& args, const towline_plan& plan,
                           fabric::TransferRequest request) noexcept {
  Job* const job = take_job();
  if (job == nullptr) return Status::kAgain;
  const auto give_back = [&](Status status) {
    job->connection = nullptr;
    job->next = free_;
    free_ = job;
    return status;
  };
  try {
    const auto* message = static_cast<const uint8_t*>(args.message);
    job->message.assign(message, message + args.message_bytes);
  } catch (const std::bad_alloc&) {
    return give_back(Status::kOutOfMemory);
  }
  job->connection = &connection;
  job->cookie = args.cookie;
  job->begin = args.begin;
  job->end = args.end;
  job->result = {};
  if (request.op == fabric::TransferOp::kNone) {  // a message alone
    job->result.fences = fabric::kFencedBoth;
    ended_.push(job);
    return Status::kInProgress;
  }
  job->cursor.emplace(plan, args.begin, args.end);
  request.segments = {next_segments, job};
  request.cookie = job->index;
  Status status = Status::kOk;
  {
    const std::lock_guard lock(mutex_);
    status = engine_.submit(request, &job->transfer);
  }
  if (status != Status::kInProgress) return give_back(status);
  ++under_way_;
  connection.part_begun();
  return status;
}

void WorkerEngine::cancel(const Connection& connection, uint64_t cookie) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_)
    if (job->connection == &connection && job->cookie == cookie) engine_.cancel(job->transfer);
}

// The core gets one word, when all is known.
void WorkerEngine::complete(uint64_t cookie, const fabric::TransferResult& result) noexcept {
  Job& job = *jobs_[cookie];
  job.result = result;
  if (result.fences != fabric::kFencedBoth) return;
  --under_way_;
  job.connection->part_ended();
  ended_.push(&job);
}

void WorkerEngine::fenced(uint64_t cookie, uint32_t fences) noexcept {
  Job& job = *jobs_[cookie];
  job.result.fences = fences;
  --under_way_;
  job.connection->part_ended();
  ended_.push(&job);
}

void WorkerEngine::finish(Job& job) noexcept {
  static_assert(fabric::kFencedLocal == TOWLINE_PART_FENCED_LOCAL &&
                fabric::kFencedRemote == TOWLINE_PART_FENCED_REMOTE);
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job.result.status);
  result.fences = job.result.fences;
  const bool moved = job.result.status == Status::kOk;
  result.bytes = moved ? job.end - job.begin : job.result.bytes;
  if (!moved) {
    result.failed_begin = job.begin + job.result.failed_begin;
    result.failed_end = std::min(job.begin + job.result.failed_end, job.end);
  }
  const uint64_t cookie = job.cookie;
  job.connection = nullptr;
  job.next = free_;
  free_ = &job;
  host_.complete(cookie, result);  // may start others, or end connections
}

uint32_t WorkerEngine::deliver() noexcept {
  uint32_t done = 0;
  Queue again = std::exchange(waiting_, {});
  while (Job* const job = again.pop()) ended_.push(job);
  // Jobs that callbacks add are for the next turn, so that a chain of empty posts does not hold the worker.
  for (Job* const last = ended_.tail; ended_.head != nullptr;) {
    Job* const job = ended_.pop();
    const bool is_last = job == last;
    if (job->result.status == Status::kOk && !job->message.empty()) {
      const int32_t sent = job->connection->send(job->message.data(), job->message.size());
      if (sent == TOWLINE_AGAIN) {
        waiting_.push(job);
      } else {
        if (sent < 0) job->result.status = static_cast<Status>(sent);
        finish(*job);
        ++done;
      }
    } else {
      finish(*job);
      ++done;
    }
    if (is_last) break;
  }
  return done;
}

void WorkerEngine::take_jobs_of(const Connection& connection, Queue& from, Queue& to) noexcept {
  Queue others;
  while (Job* const job = from.pop()) (job->connection == &connection ? to : others).push(job);
  from = others;
}

void WorkerEngine::drop_jobs(const Connection& connection) noexcept {
  Queue mine;
  take_jobs_of(connection, waiting_, mine);
  take_jobs_of(connection, ended_, mine);
  while (Job* const job = mine.pop()) {
    if (job->result.status == Status::kOk && !job->message.empty()) job->result.status = Status::kPeerLost;
    finish(*job);
  }
}

// ---- progress

uint32_t WorkerEngine::progress(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  {
    const std::lock_guard lock(mutex_);
    done = static_cast<uint32_t>(engine_.progress(now_ns));
  }
  done += deliver();
  while (!losses_.empty()) {
    const Loss loss = std::move(losses_.back());
    losses_.pop_back();
    if (Connection* connection = connection_of(loss.peer)) connection->engine_lost(loss.why);
    ++done;
  }
  return done;
}

WorkerEngine::Sleep WorkerEngine::arm() noexcept {
  const std::lock_guard lock(mutex_);
  if (ended_.head != nullptr || waiting_.head != nullptr || !losses_.empty()) return Sleep::kNo;
  polled_ = !engine_.has_descriptors();
  if (!polled_) return engine_.arm() ? Sleep::kWaiting : Sleep::kNo;
  return under_way_ != 0 ? Sleep::kNo : Sleep::kPoll;
}

}  // namespace towline::rdma
