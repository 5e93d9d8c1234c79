// OwnRegions: files and the like as regions.
#include <algorithm>
#include <string_view>

#include "agent/agent.h"
#include "agent/builtin_backends.h"
#include "agent/opened_storage.h"
#include "agent/own_regions.h"
#include "agent/plugin_finder.h"
#include "agent/post.h"
#include "base/error.h"

namespace towline {

namespace {

constexpr uint32_t kKnownFlags = TOWLINE_STORAGE_CREATE | TOWLINE_STORAGE_TRUNCATE | TOWLINE_STORAGE_DIRECT |
                                 TOWLINE_STORAGE_REPLACE | TOWLINE_STORAGE_CONDITIONAL;

towline_storage_info_t info_of(const towline_storage_attributes& attributes) noexcept {
  return {sizeof(towline_storage_info_t), attributes.exists, attributes.kind, attributes.bytes,
          attributes.modified_ns};
}

[[noreturn]] void fail_as(int32_t status, const Backend& backend) {
  std::string text = take_failure_text();
  if (text.empty()) text = status_text(static_cast<Status>(status));
  fail(static_cast<Status>(status), "{}: {}", backend.name, text);
}

bool has_word(std::string_view list, std::string_view word) noexcept {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

towline_storage_args checked_args(const char* uri, const towline_storage_options_t& options) {
  if ((options.flags & ~kKnownFlags) != 0)
    fail(Status::kInvalidArgument, "options.flags is {:#x}, of which {:#x} are not known", options.flags,
         options.flags & ~kKnownFlags);
  if ((options.access & ~uint32_t{TOWLINE_ACCESS_ALL}) != 0)
    fail(Status::kInvalidArgument, "options.access is {:#x}: 1 is read, 2 is write, 3 is both",
         options.access);
  if (options.sync > TOWLINE_SYNC_FULL)
    fail(Status::kInvalidArgument, "options.sync is {}: it is TOWLINE_SYNC_NONE, _DATA or _FULL",
         options.sync);
  const bool makes =
      (options.flags & (TOWLINE_STORAGE_CREATE | TOWLINE_STORAGE_TRUNCATE | TOWLINE_STORAGE_REPLACE)) != 0;
  uint32_t access = options.access;
  if (access == 0) access = makes ? TOWLINE_ACCESS_ALL : TOWLINE_ACCESS_READ;
  if (makes && (access & TOWLINE_ACCESS_WRITE) == 0)
    fail(Status::kInvalidArgument, "options.flags asks to change the file, options.access only to read it");
  return {sizeof(towline_storage_args),
          uri,
          options.fd,
          access,
          options.flags,
          options.sync,
          options.mode != 0 ? options.mode : 0666,
          options.bytes};
}

}  // namespace

OpenedStorage::OpenedStorage(Backend& backend, const towline_storage_args& args)
    : backend_(backend), replaces_((args.flags & TOWLINE_STORAGE_REPLACE) != 0) {
  attributes_.struct_size = sizeof attributes_;
  take_failure_text();
  const int32_t status = backend.storage->open(backend.handle, &args, &handle_, &attributes_);
  if (status != TOWLINE_OK) fail_as(status, backend);
}

void OpenedStorage::commit() {
  std::lock_guard lock(mutex_);
  if (handle_ == nullptr || ended_) fail(Status::kStale, "the region has been deregistered");
  take_failure_text();
  const int32_t status = backend_.storage->commit(backend_.handle, handle_);
  if (status != TOWLINE_OK) fail_as(status, backend_);
  if (replaces_) committed_.store(true, std::memory_order_release);
}

bool OpenedStorage::end_commits() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) ended_ = true;
  return lock.owns_lock();
}

void OpenedStorage::close() noexcept {
  std::lock_guard lock(mutex_);
  if (handle_ != nullptr) backend_.storage->close(backend_.handle, std::exchange(handle_, nullptr));
}

towline_storage* storage_of(const Region& region, const Backend& backend) noexcept {
  const auto* opened = static_cast<const OpenedStorage*>(region.storage.get());
  return opened != nullptr && &opened->backend() == &backend ? opened->handle() : nullptr;
}

// ---- regions of storage

namespace {

// What would make a backend that comes with Towline serve its scheme, which none of the agent's does.
std::string way_to_load(Agent& agent, const BundledBackend& bundled) {
  for (const auto& backend : agent.backends().backends()) {
    if (backend->plugin == nullptr && (backend->name == bundled.plugin || backend->name == bundled.name))
      return fmt::format("\n  {}: {}", bundled.name, backend->reason);
    if (backend->plugin != nullptr && backend->name == bundled.name)
      return {};  // loaded: its own line says why
  }
  if (bundled_plugin(agent.config(), bundled.plugin).empty())
    return fmt::format(
        "\n  {} serves {}:, but its plugin libtowline_{}.so is not installed beside the library",
        bundled.name, bundled.scheme, bundled.plugin);
  if (!agent.backends().in_order_of_cost())
    return fmt::format("\n  {} serves {}:, but the setting backends leaves it out: add {} there",
                       bundled.name, bundled.scheme, bundled.name);
  return fmt::format("\n  the setting plugins = \"{}\" loads the one for {}:", bundled.plugin,
                     bundled.scheme);
}

}  // namespace

Backend& OwnRegions::storage_backend(const char* uri) {
  const std::string_view text = uri == nullptr ? "file:" : uri;
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0)
    fail(Status::kInvalidArgument, "'{}' has no scheme: a file is named \"file:/path\"", text);
  const std::string_view scheme = text.substr(0, colon);
  std::string known;
  for (const auto& backend : agent_.backends().backends()) {
    if (backend->plugin == nullptr || !backend->has_trait(TOWLINE_TRAIT_STORAGE)) continue;
    if (!backend->open()) {
      known += fmt::format("\n  {}: {}", backend->name, backend->why_not_open());
      continue;
    }
    if (has_word(backend->storage->schemes, scheme)) return *backend;
    known += fmt::format("\n  {}: serves {}", backend->name, backend->storage->schemes);
  }
  if (known.empty()) known = "; it has no storage backend";
  for (const BundledBackend& bundled : bundled_backends()) {
    if (scheme == bundled.scheme) known += way_to_load(agent_, bundled);
  }
  fail(Status::kUnsupported, "no backend of this agent serves '{}:'{}", scheme, known);
}

std::shared_ptr<Region> OwnRegions::add_storage(const char* uri, const towline_storage_options_t& options) {
  agent_.check_usable();
  towline_storage_args args = checked_args(uri, options);
  const std::shared_ptr<const RegionLabel> label = label_from(options.name, options.layout);
  const bool shaped = label != nullptr && label->shaped();
  check_layout(label.get(), options.bytes != 0 ? options.bytes : UINT64_MAX);
  if (uri == nullptr && args.fd < 0)
    fail(Status::kInvalidArgument, "uri is null and options.fd is {}: one of them is needed", args.fd);
  if (shaped && args.bytes == 0 && (args.access & TOWLINE_ACCESS_WRITE) != 0)
    args.bytes = end_of(label->layout);
  auto opened = std::make_shared<OpenedStorage>(storage_backend(uri), args);
  const towline_storage_attributes& attributes = opened->attributes();
  const std::string name = uri != nullptr ? uri : fmt::format("descriptor {}", args.fd);
  const uint64_t bytes = options.bytes != 0 ? options.bytes : std::max(args.bytes, attributes.bytes);
  if (bytes == 0)
    fail(Status::kInvalidArgument, "{} is empty: say in options.bytes how far it may be written", name);
  Region region;
  region.ref = {0, 0, bytes, last_device_.fetch_add(1) + 1, attributes.kind, args.access, 0, 0};
  validate_region(region.ref, name);
  check_layout(label.get(), bytes);
  region.label = label;
  region.storage = std::move(opened);
  return take_on(std::move(region));
}

void OwnRegions::query_storage(const char* uri, towline_storage_info_t& info) {
  agent_.check_usable();
  Backend& backend = storage_backend(uri);
  towline_storage_attributes attributes = {};
  attributes.struct_size = sizeof attributes;
  take_failure_text();
  const int32_t status = backend.storage->query(backend.handle, uri, &attributes);
  if (status != TOWLINE_OK) fail_as(status, backend);
  info = info_of(attributes);
}

void OwnRegions::list_storage(const char* prefix, towline_storage_found_t found, void* argument) {
  agent_.check_usable();
  Backend& backend = storage_backend(prefix);
  if (backend.storage->list == nullptr)
    fail(Status::kUnsupported, "{} can't list its contents; s3:, az: and gs: can", backend.name);
  struct Caller {
    towline_storage_found_t found;
    void* argument;
  } caller{found, argument};
  take_failure_text();
  const int32_t status = backend.storage->list(
      backend.handle, prefix,
      [](void* context, const char* uri, const towline_storage_attributes* attributes) -> int32_t {
        const auto& to = *static_cast<const Caller*>(context);
        towline_storage_attributes known;
        if (towline_take(&known, sizeof known, TOWLINE_STORAGE_ATTRIBUTES_MINIMUM, attributes) == 0) return 1;
        const towline_storage_info_t info = info_of(known);
        return to.found(to.argument, uri, &info);
      },
      &caller);
  if (status != TOWLINE_OK) fail_as(status, backend);
}

// Until the backend is asked nothing is final: a commit that gives up leaves every post as it was. A post's legs are not
// held, since they have to end it.
void OwnRegions::commit_storage(const std::shared_ptr<Region>& region, uint64_t timeout_ns) {
  agent_.check_usable();
  auto* opened = static_cast<OpenedStorage*>(region->storage.get());
  if (opened == nullptr) fail(Status::kInvalidArgument, "the region is memory: only storage is committed");
  if (!opened->replaces() || opened->committed()) return opened->commit();
  const std::unique_lock replacing = opened->begin_replacing();
  if (!replacing.owns_lock()) fail(Status::kBusy, "another thread commits the region");
  const auto for_each_user = [this, key = region->ref.key](auto&& visit) {
    agent_.for_each_post([&](Post& post) {
      if (post.local().uses_region(key) || post.remote().uses_region(key)) visit(post);
    });
  };
  const bool idle = agent_.drive_until(
      [&] {
        bool ready = true;
        for_each_user([&](Post& post) {
          if (!post.is_leg()) post.hold_gate();
          ready = ready && post.ready();
        });
        return ready;
      },
      Deadline::after(agent_.now_ns(), timeout_ns).ns());
  if (!idle) {
    for_each_user([](Post& post) { post.open_gate(); });
    fail(Status::kTimedOut, "a transfer of the region is still in flight");
  }
  for_each_user([](Post& post) { post.close_gate(static_cast<int32_t>(Status::kStale)); });
  opened->commit();
}

bool OwnRegions::end_commits(Region& region) noexcept {
  auto* opened = static_cast<OpenedStorage*>(region.storage.get());
  return opened == nullptr || opened->end_commits();
}

void OwnRegions::close_storage(Region& region) noexcept {
  if (auto* opened = static_cast<OpenedStorage*>(region.storage.get()); opened != nullptr) opened->close();
}

}  // namespace towline
