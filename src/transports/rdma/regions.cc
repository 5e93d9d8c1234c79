#include "transports/rdma/regions.h"

#include <new>
#include <utility>

#include "base/error.h"
#include "fabric/registrations.h"

namespace towline::rdma {

namespace {

bool is_settled(const RegionKeys& keys) noexcept {
  return keys.state == RegionKeys::State::kDone || keys.state == RegionKeys::State::kFailed;
}

}  // namespace

// One registration in the background.
struct Regions::Job {
  Regions& regions;
  UniqueFd dma_buf;
  std::shared_ptr<RegionRanges::Arena> arena = nullptr;

  static void work(void* argument) {
    const std::unique_ptr<Job> job{static_cast<Job*>(argument)};
    job->regions.carry_out(*job->arena);
    job->regions.owner_.settled();
  }
};

Regions::Regions(RegionsOwner& owner, uint64_t background_bytes)
    : owner_(owner), background_bytes_(background_bytes) {}

Registered* Regions::add(const towline_region_ref& region, const fabric::MemoryToRegister& memory,
                         uint32_t rails, UniqueFd dma_buf) {
  auto added = std::make_unique<Registered>();
  added->region = region;
  added->rails = rails;
  Registered* const result = added.get();
  const bool background = background_bytes_ != 0 && memory.bytes >= background_bytes_;
  std::unique_ptr<Job> job{background ? new Job{*this, std::move(dma_buf)} : nullptr};
  {
    const std::lock_guard lock(mutex_);
    refusals_.erase(index_of(region.key));
    std::unique_ptr<Registered>& kept = regions_[region.key];
    try {
      added->piece = ranges_.enter(memory);
    } catch (...) {
      regions_.erase(region.key);
      throw;
    }
    kept = std::move(added);
    if (!result->piece->is_first()) return result;
    ++under_way_;
  }
  const std::shared_ptr<RegionRanges::Arena> arena = result->piece->arena();
  if (job != nullptr) {
    job->arena = arena;
    if (owner_.run(Job::work, job.get())) {
      (void)job.release();
      return result;
    }
  }
  carry_out(*arena);
  if (arena->keys.state == RegionKeys::State::kDone) return result;
  remove(result);
  throw core::Error(arena->keys.status, arena->keys.reason);
}

void Regions::carry_out(RegionRanges::Arena& arena) noexcept {
  RegionKeys& keys = arena.keys;
  {
    const std::lock_guard lock(mutex_);
    --under_way_;
    if (keys.state == RegionKeys::State::kUnwanted) return;
    keys.state = RegionKeys::State::kUnderWay;
    ++made_;
  }
  std::vector<fabric::LocalMemory> memory;
  Status status = Status::kOk;
  std::string reason;
  try {
    memory = owner_.register_memory(arena.memory);
  } catch (const core::Error& error) {
    status = error.code() == Status::kAgain ? Status::kIo : error.code();
    reason = error.message();
  } catch (const std::bad_alloc&) {
    status = Status::kOutOfMemory;
  }
  const std::lock_guard lock(mutex_);
  keys.memory = std::move(memory);
  keys.status = status;
  keys.reason = std::move(reason);
  keys.state = status == Status::kOk ? RegionKeys::State::kDone : RegionKeys::State::kFailed;
  if (status != Status::kOk) arena.open = false;
  settled_.notify_all();
}

void Regions::remove(Registered* registered) noexcept {
  std::unique_ptr<Registered> region;
  std::unique_lock lock(mutex_);
  const auto found = regions_.find(registered->region.key);
  if (found == regions_.end() || found->second.get() != registered) return;
  region = std::move(found->second);
  regions_.erase(found);
  RegionRanges::Arena& arena = *region->piece->arena();
  // A registration that has not begun is left out, unless other regions share it. It covers the first one's memory, which
  // must stay mapped until then; the others lie within that.
  const bool waiting = arena.keys.state == RegionKeys::State::kWaiting;
  if (waiting && arena.pieces == 1)
    arena.keys.state = RegionKeys::State::kUnwanted;
  else if (!waiting || region->piece->is_first())
    settled_.wait(lock, [&] { return is_settled(arena.keys); });
  const bool last = ranges_.leave(*region->piece);
  const std::vector<fabric::LocalMemory> memory =
      last ? std::move(arena.keys.memory) : std::vector<fabric::LocalMemory>{};
  lock.unlock();
  if (!memory.empty()) owner_.deregister_memory(memory);
}

void Regions::refuse(uint64_t key, std::string reason) {
  const std::lock_guard lock(mutex_);
  refusals_[index_of(key)] = {key, std::move(reason)};
}

Regions::State Regions::look_locked(Registered& registered) {
  const RegionRanges::Arena& arena = *registered.piece->arena();
  if (arena.keys.state == RegionKeys::State::kFailed) return {arena.keys.status, arena.keys.reason};
  if (arena.keys.state != RegionKeys::State::kDone) return {Status::kAgain, "it is being registered"};
  if (registered.memory.empty()) {
    registered.memory.reserve(arena.keys.memory.size());
    for (const fabric::LocalMemory& keys : arena.keys.memory)
      registered.memory.push_back(fabric::piece_of(
          keys, reinterpret_cast<const void*>(registered.region.address), registered.region.bytes));
  }
  return {};
}

Regions::State Regions::look(Registered& registered, uint32_t worker, const fabric::LocalMemory*& memory) {
  const std::lock_guard lock(mutex_);
  State state = look_locked(registered);
  if (state.status == Status::kOk) memory = &registered.memory[worker];
  return state;
}

Regions::State Regions::find(uint64_t key, uint32_t worker, towline_region_ref& region,
                             fabric::RemoteMemory& remote) {
  const std::lock_guard lock(mutex_);
  const auto refused = refusals_.find(index_of(key));
  if (refused != refusals_.end() && refused->second.key == key)
    return {Status::kUnsupported, refused->second.reason};
  const auto found = regions_.find(key);
  if (found == regions_.end()) return {Status::kNotFound, "it was registered before this backend came"};
  region = found->second->region;
  State state = look_locked(*found->second);
  if (state.status == Status::kOk) remote = fabric::Engine::describe(found->second->memory[worker]);
  return state;
}

RegionsCounters Regions::counters() const {
  const std::lock_guard lock(mutex_);
  return {regions_.size(), ranges_.arenas(), under_way_, made_};
}

}  // namespace towline::rdma
