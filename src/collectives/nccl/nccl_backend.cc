#include "collectives/nccl/nccl_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "base/os/host_identity.h"
#include "collectives/calls/types.h"
#include "collectives/forming.h"
#include "collectives/nccl/nccl_calls.h"

namespace towline::collectives::nccl {
namespace {

// While NCCL waits for the other ranks.
constexpr auto kLookAtOthers = std::chrono::milliseconds(50);
constexpr uint64_t kMagic = 0x746c6e63636c0001;

// Every rank sends this before NCCL starts, as bytes.
struct Introduction {
  uint64_t magic = kMagic;
  int32_t version = 0;
  uint32_t gpu = 0;
  cuda::Uuid uuid = {};
  HostIdentity host;
};
static_assert(std::is_trivially_copyable_v<Introduction>);

const Api& api_from(const std::string& file) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, Api>;  // for good, as the library itself
  const std::lock_guard lock(mutex);
  return loaded.try_emplace(file, file).first->second;
}

// NCCL's start cannot be cut short from outside: it runs on a thread of its own, which stays if the time is over.
struct Start {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool given_up = false;
  Result result = kSuccess;
  std::string text;
  Comm comm = nullptr;
};

}  // namespace

NcclBackend::NcclBackend(const towline_collective_open_args& args, cuda::KernelDevice& device)
    : StreamBackend(args, device),
      api_(api_from(host_->config(host_->context, "collectives.nccl_library", ""))) {
  const Deadline deadline = Deadline::at(args.deadline_ns);
  introduce(deadline);
  room(4096);
  form(deadline);
  breaker_.set_listener([this](const Breakage& breakage) {
    host_->broken(host_->context, static_cast<int32_t>(breakage.status), breakage.text.c_str());
  });
  watcher_ = std::thread([this] { watch(); });
}

// ---- Forming

void NcclBackend::introduce(Deadline deadline) {
  const cuda::Noticeboard store = board();
  Introduction mine;
  mine.version = api_.version;
  mine.gpu = gpu_;
  mine.uuid = device_.gpus()[gpu_].uuid;
  mine.host = read_host_identity();
  store.set(fmt::format("nccl/rank/{}", rank_), {reinterpret_cast<const uint8_t*>(&mine), sizeof mine});
  const char* const several = host_->environment(host_->context, "NCCL_MULTI_RANK_GPU_ENABLE");
  const bool shared = several != nullptr && *several == '1';
  std::vector<Introduction> all(size_);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    std::vector<uint8_t> value;
    try {
      value = store.get(fmt::format("nccl/rank/{}", rank), deadline);
    } catch (const Error& error) {
      if (error.code() != Status::kTimedOut) throw;
      fail(Status::kTimedOut, "timed out waiting for rank {} to join", rank);
    }
    if (value.size() != sizeof mine)
      fail(Status::kMismatch, "nccl: rank {} has another build of Towline", rank);
    std::memcpy(&all[rank], value.data(), sizeof mine);
    if (all[rank].magic != kMagic)
      fail(Status::kMismatch, "nccl: rank {} has another build of Towline", rank);
    if (all[rank].version != mine.version)
      fail(Status::kMismatch, "nccl: rank {} has NCCL {}, this rank {}", rank, all[rank].version,
           mine.version);
    for (uint32_t other = 0; other < rank && !shared; ++other)
      if (all[other].host.same_host(all[rank].host) && all[other].uuid == all[rank].uuid)
        fail(Status::kUnsupported,
             "ranks {} and {} both use GPU {} of one host: NCCL needs a GPU for each rank; use the backend "
             "gpu, or set "
             "NCCL_MULTI_RANK_GPU_ENABLE=1 where NCCL has it",
             other, rank, all[rank].gpu);
  }
}

void NcclBackend::form(Deadline deadline) {
  const cuda::Noticeboard store = board();
  UniqueId id;
  if (rank_ == 0) {
    if (const Result result = api_.get_unique_id(&id); result != kSuccess)
      fail(Status::kIo, "nccl: cannot make a communicator's id: {}", api_.text(result));
    store.set("nccl/id", {reinterpret_cast<const uint8_t*>(id.bytes), sizeof id.bytes});
  } else {
    const std::vector<uint8_t> value = store.get("nccl/id", deadline);
    if (value.size() != sizeof id.bytes) fail(Status::kProtocol, "nccl: rank 0 gave no communicator's id");
    std::memcpy(id.bytes, value.data(), sizeof id.bytes);
  }
  const auto start = std::make_shared<Start>();
  std::thread starter([start, id, &api = api_, &device = device_, gpu = gpu_, rank = static_cast<int>(rank_),
                       size = static_cast<int>(size_)] {
    Settings settings;
    Comm comm = nullptr;
    Result result = kSuccess;
    std::string text;
    device.with_gpu(gpu, [&] {
      result = api.init(&comm, size, id, rank, &settings);
      if (result != kSuccess) text = api.text(result);
    });
    const std::lock_guard lock(start->mutex);
    start->done = true;
    start->result = result;
    start->text = text;
    start->comm = comm;
    if (start->given_up && result == kSuccess) api.abort(comm);
    start->changed.notify_all();
  });
  std::unique_lock lock(start->mutex);
  try {
    while (!start->done) {
      if (deadline.passed(monotonic_now_ns()))
        fail(Status::kTimedOut, "timed out while NCCL formed a communicator of {} ranks", size_);
      if (!start->changed.wait_for(lock, kLookAtOthers, [&] { return start->done; })) check_forming(*host_);
    }
  } catch (const Error&) {
    start->given_up = true;
    starter.detach();
    throw;
  }
  lock.unlock();
  starter.join();
  if (start->result != kSuccess)
    fail(Status::kIo, "rank {}: NCCL cannot form a communicator of {} ranks: {}", rank_, size_, start->text);
  comm_ = start->comm;
}

// ---- Operations

void NcclBackend::check(Result result, const char* what) {
  if (result == kSuccess) return;
  const std::string text =
      fmt::format("rank {}: NCCL failed in {}: {}", rank_, what, api_.text(result, comm_));
  if (result != kInvalidArgument && result != kInvalidUsage) break_with(Status::kIo, text, true);
  fail(result == kInvalidArgument || result == kInvalidUsage ? Status::kInvalidArgument : Status::kIo, "{}",
       text);
}

NcclBackend::Mark NcclBackend::prepare(const towline_collective_t& call, uint64_t number) {
  check_supported(call, api_.version);
  Mark mark;
  if (call.op == TOWLINE_COLLECTIVE_SEND || call.op == TOWLINE_COLLECTIVE_RECV) {
    const bool sends = call.op == TOWLINE_COLLECTIVE_SEND;
    check_address(sends ? call.input : call.output, sends ? "input" : "output");
    mark.message = 1;
    return mark;
  }
  take_apart(call, static_cast<int>(rank_), static_cast<int>(size_), number, Deadline::never(), parts_);
  check_memory(call, parts_);
  mark.header = parts_.header;
  return mark;
}

std::string NcclBackend::text_of(const Mark& mark, const std::string& message) const {
  return mark.message != 0 ? message : collectives::describe(mark.header);
}

void* NcclBackend::room(uint64_t bytes) {
  if (room_ == nullptr || room_->bytes() < bytes) {
    if (room_ != nullptr) old_rooms_.push_back(std::move(room_));
    room_ = device_.allocate(gpu_, bytes);
  }
  return reinterpret_cast<void*>(room_->address());
}

void NcclBackend::launch(const towline_collective_t& call, const Mark& mark, Deadline deadline, void* stream,
                         uint64_t graph, cuda::Moment* ended) {
  put(channel_, op_name(call.op), stream, graph, ended, [&](void* in) -> cuda::Code {
    // Under the channel's lock: NCCL is not taken down meanwhile, unless it hangs.
    if (breaker_.broken()) fail(breaker_.status(), "{}", breaker_.breakage().text);
    const Result result =
        mark.message != 0 ? enqueue_message(api_, comm_, call, in)
                          : enqueue(
                                api_, comm_, call, parts_, static_cast<int>(rank_), static_cast<int>(size_),
                                [this](uint64_t bytes) { return room(bytes); }, in);
    check(result, op_name(call.op));
    return 0;
  });
  if (graph == 0) follow(call, mark, deadline, stream);
}

void NcclBackend::issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns,
                        void* stream) {
  const uint64_t graph = graph_of(stream);
  const Mark mark = prepare(call, number);
  launch(call, mark, Deadline::after(monotonic_now_ns(), timeout_ns), stream, graph, nullptr);
}

std::unique_ptr<StreamMessage> NcclBackend::issue_beside(const towline_collective_t& call, uint64_t number,
                                                         uint64_t timeout_ns, void* stream) {
  const uint64_t graph = graph_of(stream);
  const Mark mark = prepare(call, number);
  void* const own = own_stream(channel_, graph != 0);
  std::unique_ptr<StreamMessage> message = begin_beside(stream, own, graph);
  launch(call, mark, Deadline::after(monotonic_now_ns(), timeout_ns), own, graph, message->ended.get());
  return message;
}

Status NcclBackend::perform(const towline_collective_t& call, uint64_t number, Deadline deadline) {
  const Mark mark = prepare(call, number);
  launch(call, mark, deadline, own_stream(channel_, false), 0, nullptr);
  return wait_for(channel_, deadline, [&] { return text_of(mark, op_name(call.op)); });
}

// ---- Messages

void NcclBackend::start(const towline_collective_t& call, StreamMessage& message) {
  const Mark mark = prepare(call, 0);
  message.ended = device_.make_moment(gpu_);
  if (grouping_) {
    group_.push_back({&call, &message});
    return;
  }
  launch(call, mark, Deadline::never(), own_stream(channel_, false), 0, message.ended.get());
}

void NcclBackend::together(bool begin) {
  grouping_ = begin;
  if (begin || group_.empty()) return;
  void* const stream = own_stream(channel_, false);
  const std::vector<Waiting> group = std::move(group_);
  group_.clear();
  Mark mark;
  mark.message = 1;
  put(channel_, "batch", stream, 0, nullptr, [&](void* in) -> cuda::Code {
    if (breaker_.broken()) fail(breaker_.status(), "{}", breaker_.breakage().text);
    check(api_.group_start(), "batch");
    Result first = kSuccess;
    for (const Waiting& waiting : group) {
      const Result result = enqueue_message(api_, comm_, *waiting.call, in);
      if (first == kSuccess) first = result;
    }
    const Result ended = api_.group_end();
    check(first != kSuccess ? first : ended, "batch");
    for (const Waiting& waiting : group)
      if (const cuda::Code code = waiting.message->ended->record(in); code != 0) return code;
    return 0;
  });
  follow(*group.front().call, mark, Deadline::never(), stream);
}

std::string NcclBackend::describe() const {
  return fmt::format(R"({{"gpu":{},"nccl":"{}.{}.{}","library":"{}"}})", gpu_, api_.version / 10000,
                     api_.version / 100 % 100, api_.version % 100, api_.library.path());
}

}  // namespace towline::collectives::nccl
