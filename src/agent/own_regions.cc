#include "agent/own_regions.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/opened_storage.h"
#include "agent/post.h"
#include "base/error.h"
#include "base/sync/in_use.h"

namespace towline {

namespace {

// A thread that writes to the memory while it is moved gets SIGSEGV, so the memory must not be in use. Memory
// that is already shared is not moved again.
void check_unused_before_moving(const RegionTable& regions, const towline_region_ref& moved) {
  for (const auto& region : regions.published()) {
    const towline_region_ref& there = region->ref;
    const bool apart =
        moved.address >= there.address + there.bytes || there.address >= moved.address + moved.bytes;
    if (there.kind != TOWLINE_MEMORY_DRAM || apart || region->shared.file != nullptr) continue;
    fail(Status::kBusy,
         "[{:#x}, {:#x}) can't be moved onto shared memory: the region [{:#x}, {:#x}) with key {} overlaps "
         "it and may be in use; deregister that first, or register it to be shared as well",
         moved.address, moved.address + moved.bytes, there.address, there.address + there.bytes, there.key);
  }
}

}  // namespace

std::shared_ptr<const RegionLabel> OwnRegions::label_from(const char* name, const towline_layout_t* layout) {
  if (name == nullptr) {
    if (layout != nullptr)
      fail(Status::kInvalidArgument,
           "options.layout is given, but options.name is not: views find the region by that");
    return nullptr;
  }
  auto label = std::make_shared<RegionLabel>();
  label->name = name;
  if (!is_region_name(label->name))
    fail(Status::kInvalidArgument, "a region's name has 1 to {} bytes, and options.name {}",
         TOWLINE_MAX_REGION_NAME_BYTES, label->name.size());
  if (layout == nullptr) return label;
  const std::size_t size = layout->struct_size;
  if (size < offsetof(towline_layout, stride) + sizeof(layout->stride) || size > 4096)
    fail(Status::kInvalidArgument, "options.layout->struct_size is {}; set it to sizeof the struct", size);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(layout);
  if (std::any_of(bytes + std::min(size, sizeof *layout), bytes + size,
                  [](unsigned char byte) { return byte != 0; }))
    fail(Status::kUnsupported,
         "options.layout sets a field that this version of the library does not have: it knows {} bytes of "
         "the struct",
         sizeof *layout);
  std::memcpy(&label->layout, layout, std::min(size, sizeof label->layout));
  label->layout.struct_size = sizeof label->layout;
  complete(label->layout);
  return label;
}

void OwnRegions::check_layout(const RegionLabel* label, uint64_t bytes) {
  if (label == nullptr || label->layout.struct_size == 0) return;
  if (const std::string why = wrong_with(label->layout, bytes); !why.empty())
    fail(Status::kInvalidArgument, "the layout of region '{}' {}", label->name, why);
}

std::shared_ptr<Region> OwnRegions::add(void* address, uint64_t bytes,
                                        const towline_region_options_t& options) {
  agent_.check_usable();
  Region region;
  region.ref = {0,
                reinterpret_cast<uint64_t>(address),
                bytes,
                options.device,
                options.kind,
                options.access,
                options.flags & (TOWLINE_REGION_GUARDED | TOWLINE_REGION_SHARE),
                0};
  validate_region(region.ref, "region");
  region.label = label_from(options.name, options.layout);
  check_layout(region.label.get(), bytes);
  if (is_storage(options.kind))
    fail(Status::kInvalidArgument, "files, devices and objects are registered by towline_storage_register");
  if (options.kind == TOWLINE_MEMORY_DRAM) {
    if ((options.flags & TOWLINE_REGION_SHARE) != 0) {
      check_unused_before_moving(table_, region.ref);
      region.in_place = share_in_place(address, bytes);
    }
    region.shared = find_shared_range(address, bytes, region.shared_reason);
  }
  return take_on(std::move(region));
}

std::shared_ptr<Region> OwnRegions::add_private(void* address, uint64_t bytes) {
  Region region;
  region.ref = {0, reinterpret_cast<uint64_t>(address), bytes, 0, TOWLINE_MEMORY_DRAM, TOWLINE_ACCESS_ALL, 0,
                0};
  region.shared = find_shared_range(address, bytes, region.shared_reason);
  const std::lock_guard registering(registration_mutex_);
  return take_on_unpublished(std::move(region));
}

std::shared_ptr<Region> OwnRegions::take_on(Region region) {
  const std::lock_guard registering(registration_mutex_);
  if (region.label != nullptr) check_name_is_free(region.label->name);
  std::shared_ptr<Region> added = take_on_unpublished(std::move(region));
  if (added->label != nullptr) names_[added->label->name] = added->ref.key;
  table_.publish(added->ref.key);
  return added;
}

// A region that is being deregistered keeps no name.
void OwnRegions::check_name_is_free(const std::string& name) {
  const auto named = names_.find(name);
  if (named == names_.end()) {
    if (names_.size() >= metadata::kMaxNamedRegions)
      fail(Status::kLimitExceeded, "{} regions of agent '{}' have names: there is no room for '{}'",
           names_.size(), agent_.name(), name);
    return;
  }
  if (table_.is_published(named->second))
    fail(Status::kAlreadyExists,
         "a region of agent '{}' is named '{}' already (key {:#x}): deregister it first, or choose another "
         "name",
         agent_.name(), name, named->second);
}

std::shared_ptr<Region> OwnRegions::take_on_unpublished(Region region) {
  std::shared_ptr<Region> added = table_.add(std::move(region));
  register_with_backends(*added);
  const bool taken =
      std::any_of(added->registrations.begin(), added->registrations.end(),
                  [](const RegionRegistration& entry) { return entry.registration != nullptr; });
  if (!taken) {
    std::string reasons;
    for (const auto& backend : agent_.backends().backends()) {
      reasons += fmt::format(
          "\n  {}: {}", backend->name,
          backend->open() ? added->registrations[backend->index].reason : backend->why_not_open());
    }
    table_.remove(added->ref.key);
    fail(Status::kUnsupported, "no backend takes this memory:{}", reasons);
  }
  return added;
}

void OwnRegions::register_with_backends(Region& region) {
  region.registrations.resize(agent_.backends().most_numbers());
  for (const Backend* const backend : agent_.backends().backends())
    region.registrations[backend->index] = register_with(*backend, region);
}

RegionRegistration OwnRegions::register_with(const Backend& backend, const Region& region) {
  RegionRegistration entry;
  if (!backend.open()) return entry;
  if ((backend.kinds & (1u << region.ref.kind)) == 0) {
    entry.reason = "it does not serve this kind of memory";
    return entry;
  }
  const towline_region_args args = {sizeof(towline_region_args), region.ref,
                                    region.shared.file != nullptr ? region.shared.file->fd() : -1,
                                    region.shared.offset, storage_of(region, backend)};
  std::vector<uint8_t> token(TOWLINE_MAX_TOKEN_BYTES);
  size_t bytes = 0;
  take_failure_text();
  towline_registration* registration = nullptr;
  const int32_t status = backend.memory->add(backend.handle, &args, &registration, token.data(), &bytes);
  if (status != TOWLINE_OK) {
    entry.reason = take_failure_text();
    if (entry.reason.empty()) entry.reason = status_text(static_cast<Status>(status));
  } else if (bytes > token.size()) {
    backend.memory->remove(backend.handle, registration);
    entry.reason = fmt::format("its token has {} bytes, of which {} fit", bytes, token.size());
  } else {
    entry.registration = registration;
    entry.token.assign(token.begin(), token.begin() + static_cast<ptrdiff_t>(bytes));
  }
  return entry;
}

std::shared_ptr<Region> OwnRegions::for_self(uint64_t key) {
  const std::lock_guard registering(registration_mutex_);
  std::shared_ptr<Region> region = table_.find(key);
  if (region == nullptr || !table_.is_published(key)) return nullptr;
  if (region->ref.access != TOWLINE_ACCESS_NONE) return region;
  std::shared_ptr<Region>& twin = twins_[key];
  if (twin != nullptr) return twin;
  try {
    Region same;
    same.ref = region->ref;
    same.ref.access = TOWLINE_ACCESS_ALL;
    same.shared = region->shared;
    same.shared_reason = region->shared_reason;
    same.hidden = true;
    twin = take_on_unpublished(std::move(same));
  } catch (...) {
    twins_.erase(key);
    throw;
  }
  table_.publish(twin->ref.key);
  return twin;
}

std::shared_ptr<Region> OwnRegions::twin_of(uint64_t key) {
  const std::lock_guard registering(registration_mutex_);
  const auto found = twins_.find(key);
  return found == twins_.end() ? nullptr : found->second;
}

Status OwnRegions::remove(const std::shared_ptr<Region>& region, uint64_t timeout_ns, std::string& why) {
  const uint64_t key = region->ref.key;
  const uint64_t deadline_ns = Deadline::after(agent_.now_ns(), timeout_ns).ns();
  const bool first = table_.retire(key);
  agent_.for_each_post([&](Post& post) {
    const bool own_target = post.remote().peer() != nullptr &&
                            post.remote().peer()->incarnation() == agent_.incarnation() &&
                            post.remote().uses_region(key);
    if (post.local().uses_region(key) || own_target) post.close_gate(static_cast<int32_t>(Status::kStale));
  });
  if (first) ask_peers_to_let_go(*region);
  why.clear();
  if (const std::shared_ptr<Region> twin = twin_of(key); twin != nullptr) {
    const uint64_t now_ns = agent_.now_ns();
    const Status status = remove(twin, deadline_ns > now_ns ? deadline_ns - now_ns : 0, why);
    if (status == Status::kNotYet) return status;
    const std::lock_guard registering(registration_mutex_);
    twins_.erase(key);
  }
  const bool gone = agent_.drive_until(
      [&] {
        why.clear();
        if (!release_transfers_of(key)) why = "a transfer of this agent is still in flight";
        if (why.empty()) why = peer_holding(key);
        if (why.empty() && table_.pinned(key) != 0) why = "a peer's access is under way";
        if (why.empty() && !end_commits(*region)) why = "a commit is under way";
        return why.empty();
      },
      deadline_ns);
  if (!gone) return Status::kNotYet;
  const std::lock_guard registering(registration_mutex_);  // until it is gone: a backend may be coming
  unregister_from_backends(*region);
  agent_.forget_own_region(key);
  if (region->label != nullptr) {
    const auto named = names_.find(region->label->name);
    if (named != names_.end() && named->second == key) names_.erase(named);
  }
  return table_.remove(key) ? Status::kOk : Status::kStale;
}

// Storage, and regions without access, are known only to this agent.
void OwnRegions::ask_peers_to_let_go(const Region& region) {
  for (auto& worker : agent_.workers()) {
    Worker::Guard guard(*worker);
    for (Link* link : std::vector<Link*>(worker->links())) {
      if (!region.for_peers() && link->peer().incarnation() != agent_.incarnation()) continue;
      if (link->talks()) link->ask_revoke(region.ref.key);
    }
  }
}

std::string OwnRegions::peer_holding(uint64_t key) {
  for (auto& worker : agent_.workers()) {
    Worker::Guard guard(*worker);
    for (const Link* link : worker->links()) {
      if (!link->revocation_pending(key)) continue;
      return fmt::format("peer '{}' ({}) has not detached from it yet over {}", link->peer().name(),
                         link->peer().health() == TOWLINE_HEALTH_ALIVE ? "alive" : "silent",
                         link->backend().name);
    }
  }
  return {};
}

// Their gates are closed. A transfer that was added since then has nothing of the region: it is retired, so
// Post::prepare_part refuses it.
bool OwnRegions::release_transfers_of(uint64_t key) {
  return agent_.with_posts([key](auto& posts) {
    InUse::publish();
    bool clean = true;
    posts.for_each([&](Post& post) {
      if (!post.local().uses_region(key)) return;
      for (uint32_t i = 0; i < post.part_room(); ++i) {
        Part& part = post.parts()[i];
        if (!part.worker->try_lock()) {
          clean = false;
          continue;
        }
        if (part.prepared != nullptr && !post.try_release(part)) clean = false;
        part.worker->unlock();
      }
    });
    return clean;
  });
}

void OwnRegions::unregister_from_backends(Region& region) {
  for (const Backend* const backend : agent_.backends().backends()) {
    if (backend->index >= region.registrations.size()) continue;
    RegionRegistration& entry = region.registrations[backend->index];
    if (entry.registration == nullptr || !backend->open()) continue;
    backend->memory->remove(backend->handle, static_cast<towline_registration*>(entry.registration));
    entry.registration = nullptr;
  }
  close_storage(region);
}

void OwnRegions::register_all_with(const Backend& backend) {
  for (const auto& region : table_.all()) {
    RegionRegistration entry = register_with(backend, *region);
    (void)table_.change(region->ref.key, [&](Region& present) {
      if (present.registrations.size() <= backend.index) present.registrations.resize(backend.index + 1);
      present.registrations[backend.index] = std::move(entry);
    });
  }
}

void OwnRegions::end() noexcept {
  // Also retired regions that are still in use: a file is closed while its backend lives. The newest first: those that a
  // backend still has to register go before it comes to them.
  uint32_t slot = RegionTable::kMaxRegions;
  while (const std::shared_ptr<Region> region = table_.last_below(slot)) {
    table_.retire(region->ref.key);
    unregister_from_backends(*region);
  }
}

}  // namespace towline
