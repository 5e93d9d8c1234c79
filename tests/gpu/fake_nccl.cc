// NCCL as its documentation describes it, over GPUs made of host memory, for ranks that are threads of one process: the
// functions that the backend loads. Operations of one communicator meet by their order; sends and receives of a pair match
// in order; within a group none waits for another. Operations that differ between ranks hang until they are aborted.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "collectives/small_floats.h"
#include "fake_nccl_work.h"
#include "gpu/fake/fake_device.h"
#include "towline/export.h"

namespace {

using namespace towline::collectives;
using namespace towline::fake_nccl;
using nccl::Datatype, nccl::Result, nccl::UniqueId;
using towline::cuda::fake::FakeStream;

// A communicator on all ranks.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  std::vector<bool> present;
  std::map<uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Operation*>> sends;
  std::map<std::pair<int, int>, std::deque<Operation*>> receives;
};

struct Member {
  std::shared_ptr<World> world;
  int rank = 0;
  std::atomic<int> error{nccl::kSuccess};
  // Guarded by world->mutex.
  bool aborted = false;
  uint64_t launched = 0;
  uint64_t executed = 0;
  uint64_t sequence = 0;
  uint32_t inside = 0;
  std::vector<Reduction> reductions;
};
struct Handle {
  std::shared_ptr<Member> member;
};
std::shared_ptr<Member>& member_of(nccl::Comm comm) { return reinterpret_cast<Handle*>(comm)->member; }

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> forming;
  uint64_t ids = 0;
  std::vector<Member*> members;
  int refusal = nccl::kSuccess;
  uint64_t calls = 0;
};
State& state() {
  static State& of_process = *new State;
  return of_process;
}

struct Launch {
  std::shared_ptr<Member> member;
  FakeStream* stream;
  std::vector<Operation> operations;
};
thread_local int depth = 0;
thread_local std::vector<Launch> pending;

void match(World& world, std::pair<int, int> pair) {
  auto& sends = world.sends[pair];
  auto& receives = world.receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Operation& send = *sends.front();
    Operation& receive = *receives.front();
    if (send.count * bytes_of(send.type) != receive.count * bytes_of(receive.type)) return;
    move(receive.to, send.from, send.count * bytes_of(send.type));
    send.done = receive.done = true;
    sends.pop_front();
    receives.pop_front();
  }
}

void post(World& world, Member& member, Operation& operation) {
  if (operation.kind == Kind::kSend || operation.kind == Kind::kReceive) {
    const bool sends = operation.kind == Kind::kSend;
    const auto pair = sends ? std::pair(member.rank, operation.root) : std::pair(operation.root, member.rank);
    (sends ? world.sends : world.receives)[pair].push_back(&operation);
    return match(world, pair);
  }
  const uint64_t number = member.sequence++;
  Meeting& meeting = world.meetings[number];
  meeting.ranks.resize(static_cast<size_t>(world.size));
  meeting.ranks[static_cast<size_t>(member.rank)] = &operation;
  if (++meeting.arrived < world.size || !alike(meeting)) return;
  carry_out(meeting);
  world.meetings.erase(number);
}

void forget(World& world, const Operation& operation) {
  for (auto& [number, meeting] : world.meetings)
    for (Operation*& one : meeting.ranks)
      if (one == &operation) one = nullptr, meeting.arrived = -1000;
  for (auto* const queues : {&world.sends, &world.receives})
    for (auto& [pair, queue] : *queues) std::erase(queue, &operation);
}

// In the stream's thread. `ticket`: its place among the communicator's launches; 0: a graph's.
void execute(Member& member, std::vector<Operation> operations, uint64_t ticket) {
  World& world = *member.world;
  std::unique_lock lock(world.mutex);
  ++member.inside;
  world.changed.wait(lock, [&] { return member.aborted || ticket == 0 || member.executed + 1 == ticket; });
  if (!member.aborted) {
    for (Operation& one : operations) post(world, member, one);
    world.changed.notify_all();
    const auto all_done = [&] {
      for (const Operation& one : operations)
        if (!one.done) return false;
      return true;
    };
    world.changed.wait(lock, [&] { return member.aborted || all_done(); });
    for (const Operation& one : operations)
      if (!one.done) forget(world, one);
  }
  if (ticket != 0) ++member.executed;
  --member.inside;
  world.changed.notify_all();
}

void launch(Launch made) {
  uint64_t ticket = 0;
  if (made.stream->recording() == 0) {
    const std::lock_guard lock(made.member->world->mutex);
    ticket = ++made.member->launched;
  }
  made.stream->put([member = made.member, operations = std::move(made.operations), ticket] {
    execute(*member, operations, ticket);
  });
}

Result enqueue(nccl::Comm comm, nccl::Stream stream, Operation operation) {
  {
    State& all = state();
    const std::lock_guard lock(all.mutex);
    ++all.calls;
    if (const int refusal = std::exchange(all.refusal, nccl::kSuccess); refusal != nccl::kSuccess)
      return refusal;
  }
  std::shared_ptr<Member>& member = member_of(comm);
  if (operation.root < 0 || operation.root >= member->world->size) return nccl::kInvalidArgument;
  if (operation.reduction.op > nccl::kAverage) {
    const auto index = static_cast<size_t>(operation.reduction.op - nccl::kAverage - 1);
    if (index >= member->reductions.size()) return nccl::kInvalidArgument;
    operation.reduction = member->reductions[index];
  }
  auto* const fake = static_cast<FakeStream*>(stream);
  if (depth == 0) {
    launch({member, fake, {operation}});
    return nccl::kSuccess;
  }
  for (Launch& one : pending) {
    if (one.member == member && one.stream == fake) {
      one.operations.push_back(operation);
      return nccl::kSuccess;
    }
  }
  pending.push_back({member, fake, {operation}});
  return nccl::kSuccess;
}

void take_down(nccl::Comm comm, bool abort) {
  const std::shared_ptr<Member> member = member_of(comm);
  {
    std::unique_lock lock(member->world->mutex);
    if (abort) member->aborted = true;
    member->world->changed.notify_all();
    member->world->changed.wait(lock, [&] {
      return member->inside == 0 && (member->aborted || member->executed == member->launched);
    });
  }
  State& all = state();
  const std::lock_guard lock(all.mutex);
  std::erase(all.members, member.get());
  delete reinterpret_cast<Handle*>(comm);
}

}  // namespace

extern "C" {

TOWLINE_API Result ncclGetVersion(int* version) {
  *version = 22803;
  return nccl::kSuccess;
}
TOWLINE_API const char* ncclGetErrorString(Result result) {
  switch (result) {
    case nccl::kSuccess:
      return "no error";
    case nccl::kRemoteError:
      return "remote process exited or there was a network error";
    case nccl::kInvalidArgument:
      return "invalid argument";
    default:
      return "unhandled system error";
  }
}
TOWLINE_API const char* ncclGetLastError(nccl::Comm) { return ""; }
TOWLINE_API Result ncclGetUniqueId(UniqueId* id) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  std::memset(id, 0, sizeof *id);
  const uint64_t number = ++all.ids;
  std::memcpy(id->bytes, &number, sizeof number);
  return nccl::kSuccess;
}
TOWLINE_API Result ncclCommInitRankConfig(nccl::Comm* comm, int size, UniqueId id, int rank,
                                          nccl::Settings* settings) {
  if (settings->magic != 0xcafebeef || rank < 0 || rank >= size) return nccl::kInvalidArgument;
  State& all = state();
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(all.mutex);
    std::shared_ptr<World>& found = all.forming[std::string(id.bytes, sizeof id.bytes)];
    if (found == nullptr) found = std::make_shared<World>();
    world = found;
  }
  auto member = std::make_shared<Member>();
  member->world = world;
  member->rank = rank;
  {
    std::unique_lock lock(world->mutex);
    world->size = size;
    world->present.resize(static_cast<size_t>(size));
    if (world->present[static_cast<size_t>(rank)]) return nccl::kInvalidUsage;
    world->present[static_cast<size_t>(rank)] = true;
    ++world->joined;
    world->changed.notify_all();
    world->changed.wait(lock, [&] { return world->joined == size; });
  }
  const std::lock_guard lock(all.mutex);
  all.forming.erase(std::string(id.bytes, sizeof id.bytes));
  all.members.push_back(member.get());
  *comm = reinterpret_cast<nccl::Comm>(new Handle{std::move(member)});
  return nccl::kSuccess;
}
TOWLINE_API Result ncclCommDestroy(nccl::Comm comm) {
  take_down(comm, false);
  return nccl::kSuccess;
}
TOWLINE_API Result ncclCommAbort(nccl::Comm comm) {
  take_down(comm, true);
  return nccl::kSuccess;
}
TOWLINE_API Result ncclCommGetAsyncError(nccl::Comm comm, Result* result) {
  *result = member_of(comm)->error;
  return nccl::kSuccess;
}
TOWLINE_API Result ncclGroupStart() {
  ++depth;
  return nccl::kSuccess;
}
TOWLINE_API Result ncclGroupEnd() {
  if (depth == 0) return nccl::kInvalidUsage;
  if (--depth != 0) return nccl::kSuccess;
  for (Launch& one : pending) launch(std::move(one));
  pending.clear();
  return nccl::kSuccess;
}
TOWLINE_API Result ncclRedOpCreatePreMulSum(nccl::Reduction* made, void* scalar, int type, int residence,
                                            nccl::Comm comm) {
  if (residence != nccl::kScalarOnHost) return nccl::kInvalidArgument;
  Reduction reduction;
  reduction.scaled = true;
  const auto read = [&](auto value) {
    std::memcpy(&value, scalar, sizeof value);
    return value;
  };
  switch (type) {
    case Datatype::kFloat64:
      reduction.factor = read(double{});
      break;
    case Datatype::kFloat16:
      reduction.factor = Float16::widen(read(uint16_t{}));
      break;
    case Datatype::kBfloat16:
      reduction.factor = Bfloat16::widen(read(uint16_t{}));
      break;
    case Datatype::kFloat8E4m3:
      reduction.factor = Float8E4m3::widen(read(uint8_t{}));
      break;
    case Datatype::kFloat8E5m2:
      reduction.factor = Float8E5m2::widen(read(uint8_t{}));
      break;
    case Datatype::kFloat32:
      reduction.factor = read(float{});
      break;
    default:
      reduction.factor = read(int8_t{});
  }
  auto& all = member_of(comm)->reductions;
  all.push_back(reduction);
  *made = nccl::kAverage + static_cast<int>(all.size());
  return nccl::kSuccess;
}
TOWLINE_API Result ncclRedOpDestroy(nccl::Reduction, nccl::Comm) { return nccl::kSuccess; }
TOWLINE_API Result ncclAllReduce(const void* from, void* to, size_t count, int type, int op, nccl::Comm comm,
                                 nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kAllReduce, from, to, count, type, {op}});
}
TOWLINE_API Result ncclReduce(const void* from, void* to, size_t count, int type, int op, int root,
                              nccl::Comm comm, nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kReduce, from, to, count, type, {op}, root});
}
TOWLINE_API Result ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                                 nccl::Comm comm, nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kBroadcast, from, to, count, type, {}, root});
}
TOWLINE_API Result ncclAllGather(const void* from, void* to, size_t count, int type, nccl::Comm comm,
                                 nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kAllGather, from, to, count, type});
}
TOWLINE_API Result ncclReduceScatter(const void* from, void* to, size_t count, int type, int op,
                                     nccl::Comm comm, nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kReduceScatter, from, to, count, type, {op}});
}
TOWLINE_API Result ncclSend(const void* from, size_t count, int type, int peer, nccl::Comm comm,
                            nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kSend, from, nullptr, count, type, {}, peer});
}
TOWLINE_API Result ncclRecv(void* to, size_t count, int type, int peer, nccl::Comm comm,
                            nccl::Stream stream) {
  return enqueue(comm, stream, {Kind::kReceive, nullptr, to, count, type, {}, peer});
}

// ---- For tests

// The state that NCCL reports of this rank's communicators when it is asked.
TOWLINE_API void towline_fake_nccl_set_error(int rank, int error) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  for (Member* const one : all.members)
    if (one->rank == rank) one->error = error;
}
// The next operation is refused with this result.
TOWLINE_API void towline_fake_nccl_refuse(int result) {
  const std::lock_guard lock(state().mutex);
  state().refusal = result;
}
// Ranks of all communicators that wait in operations for others.
TOWLINE_API int towline_fake_nccl_inside() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  uint32_t inside = 0;
  for (Member* const one : all.members) {
    const std::lock_guard of_world(one->world->mutex);
    inside += one->inside;
  }
  return static_cast<int>(inside);
}
// Communicators that were neither destroyed nor aborted.
TOWLINE_API int towline_fake_nccl_living() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().members.size());
}
}
