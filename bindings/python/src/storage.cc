// Files and objects as regions: opening, looking, listing, committing. Such a region is used like any other:
// its blocks carry its kind and device.
#include <towline/layout.h>
#include <towline/storage.h>

#include <string>
#include <vector>

#include "core.h"

namespace towline::python {

namespace {

constexpr uint64_t kCommitTimeoutNs = 30'000'000'000;

uint32_t sync_of(nb::handle name) {
  static constexpr const char* kNames[] = {"none", "data", "full"};
  for (uint32_t sync = 0; sync < 3; ++sync) {
    if (PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), kNames[sync]) == 0)
      return sync;
  }
  raise(TOWLINE_INVALID_ARGUMENT, "sync is 'none', 'data' or 'full'");
}

// `uri`: None for the open descriptor `fd`.
nb::object register_storage(nb::handle_t<Agent> self, nb::handle uri, int fd, nb::handle access,
                            uint32_t flags, nb::handle sync, nb::handle mode, nb::handle bytes,
                            nb::handle name, nb::handle given_layout) {
  auto* region = new Region;
  const nb::object result = nb::cast(region, nb::rv_policy::take_ownership);
  TOWLINE_INIT(towline_storage_options_t, options);
  options.access = access.is_none() ? uint32_t{TOWLINE_ACCESS_NONE} : access_of(access);
  options.flags = flags;
  options.sync = sync_of(sync);
  const uint64_t permissions = unsigned_integer(mode, "mode");
  if (permissions > 07777) raise(TOWLINE_INVALID_ARGUMENT, "mode is an integer from 0 to 0o7777");
  options.mode = static_cast<uint32_t>(permissions);
  options.bytes = unsigned_integer(bytes, "nbytes");
  options.fd = fd;
  TOWLINE_INIT(towline_layout_t, layout);
  if (!given_layout.is_none()) {
    take_layout(given_layout, layout);
    options.layout = &layout;
  }
  std::string its_name;
  if (!name.is_none()) {
    its_name = bytes_of_text(name, "name");
    options.name = its_name.c_str();
    region->name = nb::borrow(name);
  }
  const std::string place = uri.is_none() ? std::string() : bytes_of_text(uri, "storage");
  region->agent = nb::borrow(self);
  int32_t status = 0;
  towline_region_t* native = nullptr;
  {
    const AgentCall call(agent_of(self));
    status =
        towline_storage_register(call.native(), uri.is_none() ? nullptr : place.c_str(), &options, &native);
  }
  check(status, "towline_storage_register");
  region->native = native;
  towline_region_info_t info{};
  check(towline_region_info(native, &info, sizeof info), "towline_region_info");
  region->address = info.address;
  region->bytes = info.bytes;
  region->kind = info.kind;
  region->device = info.device;
  return result;
}

// (kind, bytes, modified_ns), or None.
nb::object query_storage(nb::handle_t<Agent> self, nb::handle uri) {
  TOWLINE_INIT(towline_storage_info_t, info);
  const std::string name = bytes_of_text(uri, "storage");
  int32_t status = 0;
  {
    const AgentCall call(agent_of(self));
    status = towline_storage_query(call.native(), name.c_str(), &info);
  }
  check(status, "towline_storage_query");
  if (info.exists == 0) return nb::none();
  return nb::make_tuple(kind_name(info.kind), info.bytes, info.modified_ns);
}

// [(uri, kind, bytes, modified_ns)] of objects whose URI begins with the prefix, at most `limit`.
nb::object list_storage(nb::handle_t<Agent> self, nb::handle prefix, nb::handle most) {
  const uint64_t limit = unsigned_integer(most, "limit");
  struct Entry {
    std::string uri;
    towline_storage_info_t info;
  };
  struct Found {
    std::vector<Entry> entries;
    uint64_t limit;
  } found{{}, limit};
  const std::string name = bytes_of_text(prefix, "prefix");
  int32_t status = 0;
  if (limit != 0) {
    const AgentCall call(agent_of(self));
    status = towline_storage_list(
        call.native(), name.c_str(),
        [](void* argument, const char* uri, const towline_storage_info_t* info) -> int32_t {
          auto& into = *static_cast<Found*>(argument);
          into.entries.push_back({uri, *info});
          return into.entries.size() < into.limit ? 0 : 1;
        },
        &found);
  }
  check(status, "towline_storage_list");
  nb::list result;
  for (const Entry& entry : found.entries)
    result.append(nb::make_tuple(text(entry.uri.data(), entry.uri.size()), kind_name(entry.info.kind),
                                 entry.info.bytes, entry.info.modified_ns));
  return std::move(result);
}

uint64_t commit_deadline(nb::handle timeout) {
  return timeout.is_none() ? now_ns() + kCommitTimeoutNs : deadline_ns(timeout);
}

void commit(Region& region, nb::handle timeout) {
  OwnEvent event(agent_of(region.agent));
  check(towline_storage_commit_async(region.use(), commit_deadline(timeout), event.queue(), nullptr),
        "towline_storage_commit_async");
  (void)event.wait(Deadline(TOWLINE_FOREVER));
  (void)event.get();
}

void start_commit(const Region& region, nb::handle timeout, uint64_t number) {
  check(towline_storage_commit_async(region.use(), commit_deadline(timeout),
                                     events_of(agent_of(region.agent)), user_data(number)),
        "towline_storage_commit_async");
}

nb::object blocks_of(const Region& region, nb::handle offset, nb::handle length, nb::args dimensions) {
  (void)region.use();
  const uint64_t begin = unsigned_integer(offset, "offset");
  if (begin > UINT64_MAX - region.address)
    raise(TOWLINE_INVALID_ARGUMENT,
          "offset lies " + std::to_string(begin) + " bytes into a region of " + std::to_string(region.bytes));
  nb::dict where;
  where["kind"] = kind_name(region.kind);
  where["device"] = region.device;
  return nb::module_::import_("towline._core")
      .attr("Blocks")(region.address + begin, length, *dimensions, **where);
}

}  // namespace

void bind_storage(nb::module_& module, Class<Region>& region) {
  region.def("commit", &commit, nb::arg("timeout") = nb::none())
      .def("commit_async",
           [](nb::handle self, nb::args arguments, nb::kwargs keywords) {
             return coroutine("commit", self, std::move(arguments), std::move(keywords));
           })
      .def("_start_commit", &start_commit, nb::arg("timeout").none(), nb::arg("number"))
      .def("blocks", &blocks_of, nb::arg("offset"), nb::arg("length"), nb::arg("dims"));
  define(module, "_register_storage", &register_storage, nb::arg("agent"), nb::arg("uri").none(),
         nb::arg("fd"), nb::arg("access").none(), nb::arg("flags"), nb::arg("sync"), nb::arg("mode"),
         nb::arg("nbytes"), nb::arg("name").none(), nb::arg("layout").none());
  define(module, "_query_storage", &query_storage, nb::arg("agent"), nb::arg("uri"));
  define(module, "_list_storage", &list_storage, nb::arg("agent"), nb::arg("prefix"), nb::arg("limit"));
  module.attr("_STORAGE_CREATE") = uint32_t{TOWLINE_STORAGE_CREATE};
  module.attr("_STORAGE_TRUNCATE") = uint32_t{TOWLINE_STORAGE_TRUNCATE};
  module.attr("_STORAGE_DIRECT") = uint32_t{TOWLINE_STORAGE_DIRECT};
  module.attr("_STORAGE_REPLACE") = uint32_t{TOWLINE_STORAGE_REPLACE};
  module.attr("_STORAGE_CONDITIONAL") = uint32_t{TOWLINE_STORAGE_CONDITIONAL};
}

}  // namespace towline::python
