// C API: storage.
#include "towline/storage.h"

#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

extern "C" {

int32_t towline_storage_register(towline_agent_t* agent, const char* uri,
                                 const towline_storage_options_t* options, towline_region_t** region) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(region, "region");
    auto given = capi::take_options(options, "options");
    if (options == nullptr) given.fd = -1;
    *region = new towline_region{agent->agent, agent->agent->own_regions().add_storage(uri, given)};
    return Status::kOk;
  });
}

int32_t towline_storage_query(towline_agent_t* agent, const char* uri, towline_storage_info_t* info) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(uri, "uri");
    capi::need(info, "info");
    const size_t size = info->struct_size;
    if (size < sizeof(size_t) || size > 4096)
      fail(Status::kInvalidArgument, "info->struct_size is {}; set it to sizeof the struct", size);
    towline_storage_info_t found = {};
    agent->agent->own_regions().query_storage(uri, found);
    found.struct_size = size;
    std::memcpy(info, &found, std::min(size, sizeof found));
    return Status::kOk;
  });
}

int32_t towline_storage_list(towline_agent_t* agent, const char* prefix, towline_storage_found_t found,
                             void* argument) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(prefix, "prefix");
    if (found == nullptr) fail(Status::kInvalidArgument, "found is null");
    agent->agent->own_regions().list_storage(prefix, found, argument);
    return Status::kOk;
  });
}

int32_t towline_storage_commit(towline_region_t* region, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    capi::need(region, "region");
    region->agent->own_regions().commit_storage(region->region, timeout_ns);
    return Status::kOk;
  });
}

}  // extern "C"
