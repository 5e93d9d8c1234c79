// NIXL's functions for C: a transfer by them alone, and what they refuse.
#include <nixl_capi.h>

#include <cstdlib>

#include "support.h"

namespace compat {
namespace {

// An agent with a UCX backend and registered memory, by the C functions.
struct CSide {
  explicit CSide(const char* name) : memory(4096, name[0]) {
    nixl_capi_mem_list_t kinds = nullptr;
    nixl_capi_params_t params = nullptr;
    EXPECT_EQ(nixl_capi_create_agent(name, &agent), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_get_plugin_params(agent, "UCX", &kinds, &params), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_create_backend(agent, "UCX", params, &backend), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_destroy_mem_list(kinds), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_destroy_params(params), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_create_reg_dlist(NIXL_CAPI_MEM_DRAM, &registered), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_reg_dlist_add_desc(registered, address(), memory.size(), 0, nullptr, 0),
              NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_register_mem(agent, registered, nullptr), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_create_xfer_dlist(NIXL_CAPI_MEM_DRAM, &blocks), NIXL_CAPI_SUCCESS);
    EXPECT_EQ(nixl_capi_xfer_dlist_add_desc(blocks, address(), 1024, 0), NIXL_CAPI_SUCCESS);
  }
  CSide(const CSide&) = delete;
  CSide& operator=(const CSide&) = delete;
  ~CSide() {
    EXPECT_EQ(nixl_capi_deregister_mem(agent, registered, nullptr), NIXL_CAPI_SUCCESS);
    nixl_capi_destroy_reg_dlist(registered);
    nixl_capi_destroy_xfer_dlist(blocks);
    nixl_capi_destroy_backend(backend);
    EXPECT_EQ(nixl_capi_destroy_agent(agent), NIXL_CAPI_SUCCESS);
  }
  [[nodiscard]] uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory.data()); }
  void load(const CSide& other) const {
    void* blob = nullptr;
    size_t bytes = 0;
    char* name = nullptr;
    ASSERT_EQ(nixl_capi_get_local_md(other.agent, &blob, &bytes), NIXL_CAPI_SUCCESS);
    ASSERT_EQ(nixl_capi_load_remote_md(agent, blob, bytes, &name), NIXL_CAPI_SUCCESS);
    std::free(blob);
    std::free(name);
  }

  std::vector<char> memory;
  nixl_capi_agent_t agent = nullptr;
  nixl_capi_backend_t backend = nullptr;
  nixl_capi_reg_dlist_t registered = nullptr;
  nixl_capi_xfer_dlist_t blocks = nullptr;
};

TEST(C, MovesBytesAndNotifications) {
  CSide here("c-here");
  CSide there("d-there");
  here.load(there);
  nixl_capi_opt_args_t args = nullptr;
  ASSERT_EQ(nixl_capi_create_opt_args(&args), NIXL_CAPI_SUCCESS);
  ASSERT_EQ(nixl_capi_opt_args_set_has_notif(args, true), NIXL_CAPI_SUCCESS);  // in either order
  ASSERT_EQ(nixl_capi_opt_args_set_notif_msg(args, "done", 4), NIXL_CAPI_SUCCESS);
  void* kept = nullptr;
  size_t kept_bytes = 0;
  ASSERT_EQ(nixl_capi_opt_args_set_custom_param(args, "own", 3), NIXL_CAPI_SUCCESS);
  ASSERT_EQ(nixl_capi_opt_args_get_custom_param(args, &kept, &kept_bytes), NIXL_CAPI_SUCCESS);
  EXPECT_EQ((std::string{static_cast<const char*>(kept), kept_bytes}), "own");
  std::free(kept);
  nixl_capi_xfer_req_t request = nullptr;
  ASSERT_EQ(nixl_capi_create_xfer_req(here.agent, NIXL_CAPI_XFER_OP_WRITE, here.blocks, there.blocks,
                                      "d-there", &request, args),
            NIXL_CAPI_SUCCESS);
  nixl_capi_status_t status = nixl_capi_post_xfer_req(here.agent, request, nullptr);
  EXPECT_TRUE(eventually([&] {
    if (status == NIXL_CAPI_IN_PROG) status = nixl_capi_get_xfer_status(here.agent, request);
    return status != NIXL_CAPI_IN_PROG;
  }));
  EXPECT_EQ(status, NIXL_CAPI_SUCCESS);
  EXPECT_EQ(there.memory[1023], 'c');
  EXPECT_EQ(there.memory[1024], 'd');
  EXPECT_EQ(nixl_capi_destroy_xfer_req(request), NIXL_CAPI_ERROR_INVALID_STATE);
  EXPECT_EQ(nixl_capi_release_xfer_req(here.agent, request), NIXL_CAPI_SUCCESS);
  EXPECT_EQ(nixl_capi_destroy_xfer_req(request), NIXL_CAPI_SUCCESS);
  EXPECT_EQ(nixl_capi_destroy_opt_args(args), NIXL_CAPI_SUCCESS);

  nixl_capi_notif_map_t map = nullptr;
  size_t count = 0;
  ASSERT_EQ(nixl_capi_create_notif_map(&map), NIXL_CAPI_SUCCESS);
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(nixl_capi_get_notifs(there.agent, map, nullptr), NIXL_CAPI_SUCCESS);
    return nixl_capi_notif_map_get_notifs_size(map, "c-here", &count) == NIXL_CAPI_SUCCESS;
  }));
  const void* text = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(nixl_capi_notif_map_get_notif(map, "c-here", 0, &text, &bytes), NIXL_CAPI_SUCCESS);
  EXPECT_EQ((std::string{static_cast<const char*>(text), bytes}), "done");
  EXPECT_EQ(nixl_capi_notif_map_get_notif(map, "c-here", 1, &text, &bytes), NIXL_CAPI_ERROR_INVALID_PARAM);
  EXPECT_EQ(nixl_capi_destroy_notif_map(map), NIXL_CAPI_SUCCESS);
}

TEST(C, RefusesWhatCannotBe) {
  CSide side("c-refuses");
  nixl_capi_agent_t agent = nullptr;
  nixl_capi_xfer_dlist_t list = nullptr;
  nixl_capi_xfer_req_t request = nullptr;
  char* name = nullptr;
  EXPECT_EQ(nixl_capi_create_agent("", &agent), NIXL_CAPI_ERROR_BACKEND);
  EXPECT_EQ(nixl_capi_create_agent(nullptr, &agent), NIXL_CAPI_ERROR_INVALID_PARAM);
  EXPECT_EQ(nixl_capi_destroy_agent(nullptr), NIXL_CAPI_ERROR_INVALID_PARAM);
  EXPECT_EQ(nixl_capi_create_xfer_dlist(NIXL_CAPI_MEM_UNKNOWN, &list), NIXL_CAPI_ERROR_INVALID_PARAM);
  EXPECT_EQ(nixl_capi_xfer_dlist_rem_desc(side.blocks, 7), NIXL_CAPI_ERROR_BACKEND);
  EXPECT_EQ(nixl_capi_load_remote_md(side.agent, "garbage", 7, &name), NIXL_CAPI_ERROR_BACKEND);
  EXPECT_EQ(nixl_capi_create_xfer_req(side.agent, NIXL_CAPI_XFER_OP_READ, side.blocks, side.blocks, "nobody",
                                      &request, nullptr),
            NIXL_CAPI_ERROR_NOT_FOUND);
  EXPECT_FALSE(nixl_capi_is_stub());
}

TEST(C, ParametersAreWalkedThrough) {
  nixl_capi_params_t params = nullptr;
  nixl_capi_param_iter_t iterator = nullptr;
  ASSERT_EQ(nixl_capi_create_params(&params), NIXL_CAPI_SUCCESS);
  ASSERT_EQ(nixl_capi_params_add(params, "a", "1"), NIXL_CAPI_SUCCESS);
  ASSERT_EQ(nixl_capi_params_add(params, "b", "2"), NIXL_CAPI_SUCCESS);
  ASSERT_EQ(nixl_capi_params_create_iterator(params, &iterator), NIXL_CAPI_SUCCESS);
  std::string seen;
  bool more = true;
  while (more) {
    const char* key = nullptr;
    const char* value = nullptr;
    ASSERT_EQ(nixl_capi_params_iterator_next(iterator, &key, &value, &more), NIXL_CAPI_SUCCESS);
    seen += std::string{key} + value;
  }
  EXPECT_TRUE(seen == "a1b2" || seen == "b2a1") << seen;
  EXPECT_EQ(nixl_capi_params_destroy_iterator(iterator), NIXL_CAPI_SUCCESS);
  EXPECT_EQ(nixl_capi_destroy_params(params), NIXL_CAPI_SUCCESS);
}

}  // namespace
}  // namespace compat
