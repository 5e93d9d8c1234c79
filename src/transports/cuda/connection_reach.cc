// Connection: how our GPU reaches a peer's memory, and how code on it does.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/connection.h"

namespace towline::cuda {

// False: a thread of the agent's maps it, since that takes long; ask again. Throws what failed there.
bool Connection::map_remote(const towline_prepare_args& args, uint32_t gpu) {
  bool there = true;
  for (uint64_t i = 0; i < args.plan->remote->region_count; ++i) {
    auto& import = *reinterpret_cast<Import*>(args.remote[i]);
    if (import.direct || import.parts == nullptr || import.mapped.contains(gpu)) continue;
    const auto pending = import.pending.find(gpu);
    if (pending == import.pending.end()) {
      there = start_mapping(import, gpu) && there;
    } else if (!pending->second->done.load(std::memory_order_acquire)) {
      there = false;
    } else {
      const std::shared_ptr<PendingMapping> ended = std::move(pending->second);
      import.pending.erase(pending);
      if (ended->failure != nullptr) std::rethrow_exception(ended->failure);
      import.mapped.emplace(gpu, std::move(ended->way));
    }
  }
  return there;
}

// True: nothing is under way, and reach_remote has to map it.
bool Connection::start_mapping(Import& import, uint32_t gpu) {
  const bool writable = (import.region.access & TOWLINE_ACCESS_WRITE) != 0;
  auto& pending = import.pending[gpu];
  pending.reset(new PendingMapping{
      backend_.mappings(), {incarnation_[0], incarnation_[1]}, gpu, import.parts, writable});
  const auto work = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<PendingMapping>> held(
        static_cast<std::shared_ptr<PendingMapping>*>(argument));
    PendingMapping& mapping = **held;
    try {
      mapping.way = mapping.cache.map(mapping.incarnation, mapping.gpu, *mapping.parts, mapping.writable);
    } catch (...) {
      mapping.failure = std::current_exception();
    }
    mapping.done.store(true, std::memory_order_release);
  };
  auto held = std::make_unique<std::shared_ptr<PendingMapping>>(pending);
  const Status status = host().run(worker_, work, held.get());
  if (status == Status::kOk) {
    (void)held.release();  // the work deletes it
    return false;
  }
  import.pending.erase(gpu);
  return status != Status::kAgain;
}

// Finds the way from our GPU to the peer's memory. Throws Error.
void Connection::reach_remote(const towline_prepare_args& args, Prepared& prepared) {
  const towline_plan& plan = *args.plan;
  const auto keep = [&](const MappingCache::Way& way) {
    prepared.held.push_back(way.keep);
    return way.delta;
  };
  for (uint64_t i = 0; i < plan.remote->region_count; ++i) {
    auto& import = *reinterpret_cast<Import*>(args.remote[i]);
    const towline_region_ref& region = import.region;
    const bool vram = region.kind == TOWLINE_MEMORY_VRAM;
    prepared.host_memory = prepared.host_memory || !vram;
    uint64_t& delta = prepared.remote_deltas.emplace_back(0);
    if (!import.direct) {
      auto known = import.mapped.find(prepared.gpu);
      if (known == import.mapped.end()) {
        const bool writable = (region.access & TOWLINE_ACCESS_WRITE) != 0;
        known = import.mapped
                    .emplace(prepared.gpu,
                             backend_.mappings().map(incarnation_, prepared.gpu, *import.parts, writable))
                    .first;
      }
      delta = keep(known->second);
    } else if (vram) {
      const std::pair<uint32_t, Use> wanted{prepared.gpu, prepared.read ? Use::kRead : Use::kWrite};
      if (import.reached.contains(wanted)) continue;
      backend_.device().reach(wanted.first, region.address, region.bytes, wanted.second);
      import.reached.insert(wanted);
    } else {
      const Use use = prepared.read ? Use::kRead : Use::kWrite;
      HostPin theirs{backend_.device(), backend_.settings().pin, region.address, region.bytes};
      std::shared_ptr<const Pinned> pinned = theirs.now(use);
      delta = pinned->delta();
      prepared.pinned.push_back(std::move(pinned));
    }
  }
}

// ---- views for code on our GPU

namespace {

// The mappings and pins that a view holds.
struct View {
  std::vector<std::shared_ptr<const void>> held;
  std::vector<std::shared_ptr<const Pinned>> pinned;
};

}  // namespace

int32_t Connection::view_prepared(towline_prepared* handle, uint64_t* local, uint64_t* remote,
                                  towline_view** out) noexcept try {
  auto& prepared = *static_cast<Prepared*>(handle);
  Connection& self = *reinterpret_cast<Connection*>(prepared.connection);
  if (!self.up_) return static_cast<int32_t>(Status::kPeerLost);
  if (prepared.work == nullptr && !self.pinned_meanwhile(prepared, PinNow::kYes))
    return self.host().refuse(Status::kUnsupported,
                              "cuda: bytes of this memory go through host memory: " + self.detour_why_);
  auto view = std::make_unique<View>(View{prepared.held, prepared.pinned});
  std::ranges::copy(prepared.local_deltas, local);
  std::ranges::copy(prepared.remote_deltas, remote);
  *out = reinterpret_cast<towline_view*>(view.release());
  return TOWLINE_OK;
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

void Connection::forget_view(towline_view* view) noexcept { delete reinterpret_cast<View*>(view); }

}  // namespace towline::cuda
