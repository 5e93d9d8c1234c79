// nixl_capi.h: strings, kinds of memory, parameters, optional arguments, descriptors, answers, notifications.
#include <iterator>

#include "handles.h"

using namespace towline::nixl::capi;  // NOLINT: this file is that interface's other side

namespace {

// An element of a list, by index.
template <class List, class Take>
nixl_capi_status_t at(const List& list, size_t index, Take take) {
  if (index >= list.size()) return NIXL_CAPI_ERROR_INVALID_PARAM;
  take(list[index]);
  return NIXL_CAPI_SUCCESS;
}

bool is_kind(nixl_capi_mem_type_t kind) noexcept {
  return kind >= NIXL_CAPI_MEM_DRAM && kind <= NIXL_CAPI_MEM_FILE;
}

template <class Handle>
nixl_capi_status_t make_list(nixl_capi_mem_type_t kind, Handle** list) {
  if (!is_kind(kind)) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return done([&] { *list = new Handle{{static_cast<nixl_mem_t>(kind)}}; }, list);
}

}  // namespace

// ---- Strings, kinds, parameters

nixl_capi_status_t nixl_capi_destroy_string_list(nixl_capi_string_list_t list) { return end(list); }

nixl_capi_status_t nixl_capi_string_list_size(nixl_capi_string_list_t list, size_t* size) {
  return done([&] { *size = list->strings.size(); }, list, size);
}

nixl_capi_status_t nixl_capi_string_list_get(nixl_capi_string_list_t list, size_t index, const char** str) {
  return run([&] { return at(list->strings, index, [&](const std::string& text) { *str = text.c_str(); }); },
             list, str);
}

nixl_capi_status_t nixl_capi_destroy_mem_list(nixl_capi_mem_list_t list) { return end(list); }

nixl_capi_status_t nixl_capi_mem_list_is_empty(nixl_capi_mem_list_t list, bool* is_empty) {
  return done([&] { *is_empty = list->mems.empty(); }, list, is_empty);
}

nixl_capi_status_t nixl_capi_mem_list_size(nixl_capi_mem_list_t list, size_t* size) {
  return done([&] { *size = list->mems.size(); }, list, size);
}

nixl_capi_status_t nixl_capi_mem_list_get(nixl_capi_mem_list_t list, size_t index,
                                          nixl_capi_mem_type_t* mem_type) {
  return run(
      [&] {
        return at(list->mems, index,
                  [&](nixl_mem_t kind) { *mem_type = static_cast<nixl_capi_mem_type_t>(kind); });
      },
      list, mem_type);
}

nixl_capi_status_t nixl_capi_mem_type_to_string(nixl_capi_mem_type_t mem_type, const char** str) {
  static constexpr const char* kNames[] = {"DRAM", "VRAM", "BLOCK", "OBJECT", "FILE", "UNKNOWN"};
  if (mem_type < NIXL_CAPI_MEM_DRAM || mem_type > NIXL_CAPI_MEM_UNKNOWN) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return done([&] { *str = kNames[mem_type]; }, str);
}

nixl_capi_status_t nixl_capi_create_params(nixl_capi_params_t* params) { return make(params); }
nixl_capi_status_t nixl_capi_destroy_params(nixl_capi_params_t params) { return end(params); }

nixl_capi_status_t nixl_capi_params_add(nixl_capi_params_t params, const char* key, const char* value) {
  return done([&] { params->params[key] = value; }, params, key, value);
}

nixl_capi_status_t nixl_capi_params_is_empty(nixl_capi_params_t params, bool* is_empty) {
  return done([&] { *is_empty = params->params.empty(); }, params, is_empty);
}

nixl_capi_status_t nixl_capi_params_create_iterator(nixl_capi_params_t params, nixl_capi_param_iter_t* iter) {
  return done(
      [&] {
        *iter = new nixl_capi_param_iter_s{params->params.cbegin(), params->params.cend()};
      },
      params, iter);
}

nixl_capi_status_t nixl_capi_params_iterator_next(nixl_capi_param_iter_t iter, const char** key,
                                                  const char** value, bool* has_next) {
  return done(
      [&] {
        if (iter->next != iter->end) {
          *key = iter->next->first.c_str();
          *value = iter->next->second.c_str();
          ++iter->next;
        }
        *has_next = iter->next != iter->end;
      },
      iter, key, value, has_next);
}

nixl_capi_status_t nixl_capi_params_destroy_iterator(nixl_capi_param_iter_t iter) { return end(iter); }

// ---- Optional arguments

nixl_capi_status_t nixl_capi_create_opt_args(nixl_capi_opt_args_t* args) { return make(args); }
nixl_capi_status_t nixl_capi_destroy_opt_args(nixl_capi_opt_args_t args) { return end(args); }

nixl_capi_status_t nixl_capi_opt_args_add_backend(nixl_capi_opt_args_t args, nixl_capi_backend_t backend) {
  return done([&] { args->args.backends.push_back(backend->backend); }, args, backend);
}

// The text and whether it counts are set one after the other, in either order.
nixl_capi_status_t nixl_capi_opt_args_set_notif_msg(nixl_capi_opt_args_t args, const void* data, size_t len) {
  if (data == nullptr && len != 0) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return done(
      [&] {
        args->args.notifMsg = len == 0 ? nixl_blob_t{} : nixl_blob_t{static_cast<const char*>(data), len};
        if (args->args.notif) args->args.notif = args->args.notifMsg;
      },
      args);
}

nixl_capi_status_t nixl_capi_opt_args_get_notif_msg(nixl_capi_opt_args_t args, void** data, size_t* len) {
  return run(
      [&] {
        const nixl_blob_t& text = args->args.notif ? *args->args.notif : args->args.notifMsg;
        if (!text.empty()) return give(text, data, len);
        *data = nullptr;
        *len = 0;
        return NIXL_CAPI_SUCCESS;
      },
      args, data, len);
}

nixl_capi_status_t nixl_capi_opt_args_set_custom_param(nixl_capi_opt_args_t args, const void* data,
                                                       size_t len) {
  if (data == nullptr && len != 0) return NIXL_CAPI_ERROR_INVALID_PARAM;
  return done(
      [&] {
        args->args.customParam = len == 0 ? nixl_blob_t{} : nixl_blob_t{static_cast<const char*>(data), len};
      },
      args);
}

nixl_capi_status_t nixl_capi_opt_args_get_custom_param(nixl_capi_opt_args_t args, void** data, size_t* len) {
  return run(
      [&] {
        if (!args->args.customParam.empty()) return give(args->args.customParam, data, len);
        *data = nullptr;
        *len = 0;
        return NIXL_CAPI_SUCCESS;
      },
      args, data, len);
}

nixl_capi_status_t nixl_capi_opt_args_set_has_notif(nixl_capi_opt_args_t args, bool has_notif) {
  return done(
      [&] {
        args->args.hasNotif = has_notif;
        args->args.notif = has_notif ? std::optional{args->args.notifMsg} : std::nullopt;
      },
      args);
}

nixl_capi_status_t nixl_capi_opt_args_get_has_notif(nixl_capi_opt_args_t args, bool* has_notif) {
  return done([&] { *has_notif = args->args.hasNotif || args->args.notif.has_value(); }, args, has_notif);
}

nixl_capi_status_t nixl_capi_opt_args_set_skip_desc_merge(nixl_capi_opt_args_t args, bool skip_merge) {
  return done([&] { args->args.skipDescMerge = skip_merge; }, args);
}

nixl_capi_status_t nixl_capi_opt_args_get_skip_desc_merge(nixl_capi_opt_args_t args, bool* skip_merge) {
  return done([&] { *skip_merge = args->args.skipDescMerge; }, args, skip_merge);
}

nixl_capi_status_t nixl_capi_opt_args_set_ip_addr(nixl_capi_opt_args_t args, const char* ip_addr) {
  return done([&] { args->args.ipAddr = ip_addr; }, args, ip_addr);
}

nixl_capi_status_t nixl_capi_opt_args_set_port(nixl_capi_opt_args_t args, uint16_t port) {
  return done([&] { args->args.port = port; }, args);
}

// ---- Answers about memory

nixl_capi_status_t nixl_capi_create_query_resp_list(nixl_capi_query_resp_list_t* list) { return make(list); }
nixl_capi_status_t nixl_capi_destroy_query_resp_list(nixl_capi_query_resp_list_t list) { return end(list); }

nixl_capi_status_t nixl_capi_query_resp_list_size(nixl_capi_query_resp_list_t list, size_t* size) {
  return done([&] { *size = list->answers.size(); }, list, size);
}

nixl_capi_status_t nixl_capi_query_resp_list_has_value(nixl_capi_query_resp_list_t list, size_t index,
                                                       bool* has_value) {
  return run(
      [&] {
        return at(list->answers, index,
                  [&](const nixl_query_resp_t& answer) { *has_value = answer.has_value(); });
      },
      list, has_value);
}

nixl_capi_status_t nixl_capi_query_resp_list_get_params(nixl_capi_query_resp_list_t list, size_t index,
                                                        nixl_capi_params_t* params) {
  return run(
      [&] {
        if (index >= list->answers.size() || !list->answers[index]) return NIXL_CAPI_ERROR_INVALID_PARAM;
        *params = new nixl_capi_params_s{*list->answers[index]};
        return NIXL_CAPI_SUCCESS;
      },
      list, params);
}

// ---- Descriptors

#define TOWLINE_NIXL_DLIST(KIND)                                                                            \
  nixl_capi_status_t nixl_capi_create_##KIND##_dlist(nixl_capi_mem_type_t mem_type,                         \
                                                     nixl_capi_##KIND##_dlist_t* dlist) {                   \
    return make_list(mem_type, dlist);                                                                      \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_destroy_##KIND##_dlist(nixl_capi_##KIND##_dlist_t dlist) {                   \
    return end(dlist);                                                                                      \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_get_type(nixl_capi_##KIND##_dlist_t dlist,                    \
                                                       nixl_capi_mem_type_t* mem_type) {                    \
    return done([&] { *mem_type = static_cast<nixl_capi_mem_type_t>(dlist->list.getType()); }, dlist,       \
                mem_type);                                                                                  \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_desc_count(nixl_capi_##KIND##_dlist_t dlist, size_t* count) { \
    return done([&] { *count = static_cast<size_t>(dlist->list.descCount()); }, dlist, count);              \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_is_empty(nixl_capi_##KIND##_dlist_t dlist, bool* is_empty) {  \
    return done([&] { *is_empty = dlist->list.isEmpty(); }, dlist, is_empty);                               \
  }                                                                                                         \
  /* Gives a trimmed copy in C++, which C has no name for. */                                               \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_trim(nixl_capi_##KIND##_dlist_t dlist) {                      \
    return done([] {}, dlist);                                                                              \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_rem_desc(nixl_capi_##KIND##_dlist_t dlist, int index) {       \
    return done([&] { dlist->list.remDesc(index); }, dlist);                                                \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_clear(nixl_capi_##KIND##_dlist_t dlist) {                     \
    return done([&] { dlist->list.clear(); }, dlist);                                                       \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_resize(nixl_capi_##KIND##_dlist_t dlist, size_t new_size) {   \
    return done([&] { dlist->list.resize(new_size); }, dlist);                                              \
  }                                                                                                         \
  nixl_capi_status_t nixl_capi_##KIND##_dlist_print(nixl_capi_##KIND##_dlist_t dlist) {                     \
    return done([&] { dlist->list.print(); }, dlist);                                                       \
  }

TOWLINE_NIXL_DLIST(xfer)
TOWLINE_NIXL_DLIST(reg)
#undef TOWLINE_NIXL_DLIST

nixl_capi_status_t nixl_capi_xfer_dlist_len(nixl_capi_xfer_dlist_t dlist, size_t* len) {
  return nixl_capi_xfer_dlist_desc_count(dlist, len);
}

nixl_capi_status_t nixl_capi_xfer_dlist_add_desc(nixl_capi_xfer_dlist_t dlist, uintptr_t addr, size_t len,
                                                 uint64_t dev_id) {
  return done([&] { dlist->list.emplace(addr, len, dev_id); }, dlist);
}

nixl_capi_status_t nixl_capi_reg_dlist_add_desc(nixl_capi_reg_dlist_t dlist, uintptr_t addr, size_t len,
                                                uint64_t dev_id, const void* metadata, size_t metadata_len) {
  return done(
      [&] {
        nixl_blob_t bytes;
        if (metadata != nullptr) bytes.assign(static_cast<const char*>(metadata), metadata_len);
        dlist->list.emplace(addr, len, dev_id, bytes);
      },
      dlist);
}

nixl_capi_status_t nixl_capi_create_remote_dlist(nixl_capi_mem_type_t mem_type,
                                                 nixl_capi_remote_dlist_t* dlist) {
  return make_list(mem_type, dlist);
}
nixl_capi_status_t nixl_capi_destroy_remote_dlist(nixl_capi_remote_dlist_t dlist) { return end(dlist); }

nixl_capi_status_t nixl_capi_remote_dlist_add_desc(nixl_capi_remote_dlist_t dlist, uintptr_t addr, size_t len,
                                                   uint64_t dev_id, const char* remote_agent) {
  return done([&] { dlist->list.emplace(addr, len, dev_id, std::string{remote_agent}); }, dlist,
              remote_agent);
}

// ---- Notifications

nixl_capi_status_t nixl_capi_create_notif_map(nixl_capi_notif_map_t* notif_map) { return make(notif_map); }
nixl_capi_status_t nixl_capi_destroy_notif_map(nixl_capi_notif_map_t notif_map) { return end(notif_map); }

nixl_capi_status_t nixl_capi_notif_map_size(nixl_capi_notif_map_t map, size_t* size) {
  return done([&] { *size = map->notifs.size(); }, map, size);
}

nixl_capi_status_t nixl_capi_notif_map_get_agent_at(nixl_capi_notif_map_t map, size_t index,
                                                    const char** agent_name) {
  return run(
      [&] {
        if (index >= map->notifs.size()) return NIXL_CAPI_ERROR_INVALID_PARAM;
        *agent_name = std::next(map->notifs.begin(), static_cast<std::ptrdiff_t>(index))->first.c_str();
        return NIXL_CAPI_SUCCESS;
      },
      map, agent_name);
}

nixl_capi_status_t nixl_capi_notif_map_get_notifs_size(nixl_capi_notif_map_t map, const char* agent_name,
                                                       size_t* size) {
  return run(
      [&] {
        const auto found = map->notifs.find(agent_name);
        if (found == map->notifs.end()) return NIXL_CAPI_ERROR_INVALID_PARAM;
        *size = found->second.size();
        return NIXL_CAPI_SUCCESS;
      },
      map, agent_name, size);
}

nixl_capi_status_t nixl_capi_notif_map_get_notif(nixl_capi_notif_map_t map, const char* agent_name,
                                                 size_t index, const void** data, size_t* len) {
  return run(
      [&] {
        const auto found = map->notifs.find(agent_name);
        if (found == map->notifs.end()) return NIXL_CAPI_ERROR_INVALID_PARAM;
        return at(found->second, index, [&](const nixl_blob_t& text) {
          *data = text.data();
          *len = text.size();
        });
      },
      map, agent_name, data, len);
}

nixl_capi_status_t nixl_capi_notif_map_clear(nixl_capi_notif_map_t map) {
  return done([&] { map->notifs.clear(); }, map);
}
