// nixlAgent: views of memory for code on a GPU.
#include <algorithm>

#include "agent_data.h"

using namespace towline::nixl;  // NOLINT: this file is that interface's other side

namespace {

constexpr const char* kCall = "prepMemView";

bool named(const nixl_opt_args_t* extra_params) noexcept {
  return extra_params != nullptr && !extra_params->backends.empty();
}

std::vector<GpuView::Entry> entries_of(const nixl_local_dlist_t& list, const std::string& own_name) {
  std::vector<GpuView::Entry> entries;
  for (const nixlBasicDesc& desc : list) entries.push_back({desc, own_name});
  return entries;
}

std::vector<GpuView::Entry> entries_of(const nixl_remote_dlist_t& list, const std::string& /*own_name*/) {
  std::vector<GpuView::Entry> entries;
  for (const nixlRemoteDesc& desc : list) entries.push_back({desc, desc.remoteAgent});
  return entries;
}

// One of Towline's own transports is among the backends that may give a view.
bool may_be_own(const nixlAgentData& data, const nixl_opt_args_t* extra_params) {
  const std::lock_guard lock(data.backends_mutex);
  const std::vector<nixlBackendH*>& allowed = named(extra_params) ? extra_params->backends : data.by_creation;
  return std::ranges::any_of(
      allowed, [&](const nixlBackendH* backend) { return data.made(backend) && backend->is_transport(); });
}

// NIXL_ERR_NOT_SUPPORTED: no plugin's engine that may gives one.
template <class List>
nixl_status_t engines_view(nixlAgentData& data, const List& list, nixlMemViewH& view,
                           const nixl_opt_args_t* extra_params) {
  nixl_opt_b_args_t args;
  if (extra_params != nullptr) args.customParam = extra_params->customParam;
  nixl_status_t status = NIXL_ERR_NOT_SUPPORTED;
  for (nixlBackendH* backend : data.engine_backends()) {
    if (named(extra_params) &&
        std::ranges::find(extra_params->backends, backend) == extra_params->backends.end())
      continue;
    status = backend->engine->view(list, view, args);
    if (status != NIXL_SUCCESS) continue;
    const std::lock_guard lock(data.backends_mutex);
    data.views[view] = backend;
    return NIXL_SUCCESS;
  }
  return status;
}

template <class List>
nixl_status_t prepare_view(nixlAgentData& data, const List& list, nixlMemViewH& view,
                           const nixl_opt_args_t* extra_params) {
  view = nullptr;
  const nixl_status_t status = engines_view(data, list, view, extra_params);
  if (status == NIXL_SUCCESS) return status;
  view = nullptr;
  if (!may_be_own(data, extra_params))
    return fail(status, "{}: no backend here gives code on a GPU a view of this memory", kCall);
  std::unique_ptr<GpuView> made;
  const nixl_status_t own = GpuView::make(data, list.getType(), entries_of(list, data.name), made);
  if (own != NIXL_SUCCESS) return own;
  view = made->handle();
  const std::lock_guard lock(data.backends_mutex);
  data.own_views[view] = std::move(made);
  return NIXL_SUCCESS;
}

// Takes a view from those that are known. Null: it is none of them.
template <class Views>
typename Views::mapped_type take(nixlAgentData& data, Views& views, nixlMemViewH view) {
  const std::lock_guard lock(data.backends_mutex);
  auto taken = views.extract(view);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

}  // namespace

nixl_status_t nixlAgent::prepMemView(const nixl_remote_dlist_t& dlist, nixlMemViewH& mvh,
                                     const nixl_opt_args_t* extra_params) const {
  return guard(kCall, [&] { return prepare_view(*data, dlist, mvh, extra_params); });
}

nixl_status_t nixlAgent::prepMemView(const nixl_local_dlist_t& dlist, nixlMemViewH& mvh,
                                     const nixl_opt_args_t* extra_params) const {
  return guard(kCall, [&] { return prepare_view(*data, dlist, mvh, extra_params); });
}

void nixlAgent::releaseMemView(nixlMemViewH mvh) const {
  if (take(*data, data->own_views, mvh) != nullptr) return;
  if (const nixlBackendH* backend = take(*data, data->views, mvh)) return backend->engine->release_view(mvh);
  log(LogLevel::kWarning, fmt::format("releaseMemView: {} is no memory view", fmt::ptr(mvh)));
}
