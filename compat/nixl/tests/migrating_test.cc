// The examples of docs/migrating-from-nixl.md, which quotes the parts between the marks.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

// [example]
#include <nixl.h>

int move_two_pages(std::vector<char>& pages, std::vector<char>& cache) {
  nixlAgent prefill("prefill-0", nixlAgentConfig(true));
  nixlAgent decode("decode-0", nixlAgentConfig(true));
  nixlBackendH* here = nullptr;
  nixlBackendH* there = nullptr;
  if (prefill.createBackend("UCX", {}, there) < 0 || decode.createBackend("UCX", {}, here) < 0) return 1;

  nixl_reg_dlist_t mine(DRAM_SEG);
  nixl_reg_dlist_t theirs(DRAM_SEG);
  mine.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(cache.data()), cache.size(), 0, ""));
  theirs.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(pages.data()), pages.size(), 0, ""));
  if (decode.registerMem(mine) < 0 || prefill.registerMem(theirs) < 0) return 2;

  std::string metadata;
  std::string name;
  if (prefill.getLocalMD(metadata) < 0 || decode.loadRemoteMD(metadata, name) < 0) return 3;

  nixl_opt_args_t args;
  args.notif = "two pages";
  nixlXferReqH* request = nullptr;
  if (decode.createXferReq(NIXL_READ, mine.trim(), theirs.trim(), name, request, &args) < 0) return 4;
  nixl_status_t status = decode.postXferReq(request);
  while (status == NIXL_IN_PROG) status = decode.getXferStatus(request);
  decode.releaseXferReq(request);

  nixl_notifs_t notifications;
  while (notifications.empty() && prefill.getNotifs(notifications) == NIXL_SUCCESS) {
  }
  const bool told = notifications["decode-0"] == std::vector<std::string>{"two pages"};
  return status == NIXL_SUCCESS && told ? 0 : 5;
}
// [example]

// [calls]
int every_other_call(std::vector<char>& pages, std::vector<char>& cache, uint16_t port) {
  nixlAgentConfig config(true);
  config.captureTelemetry = true;
  nixlAgent decode("decode-1", config);
  nixlAgent prefill("prefill-1", nixlAgentConfig(true, true, port));  // listens
  nixl_mem_list_t kinds;
  nixl_b_params_t params;
  std::vector<nixl_backend_t> plugins;
  if (decode.getAvailPlugins(plugins) < 0 || decode.getPluginParams("UCX", kinds, params) < 0) return 1;
  params["towline_timeout"] = "5s";
  nixlBackendH* ucx = nullptr;
  nixlBackendH* there = nullptr;
  if (decode.createBackend("UCX", params, ucx) < 0 || prefill.createBackend("UCX", {}, there) < 0) return 2;
  if (decode.getBackendParams(ucx, kinds, params) < 0 || params["towline_timeout"] != "5s") return 3;

  nixl_reg_dlist_t mine(DRAM_SEG);
  nixl_reg_dlist_t theirs(DRAM_SEG);
  mine.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(cache.data()), cache.size(), 0, ""));
  theirs.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(pages.data()), pages.size(), 0, ""));
  if (decode.registerMem(mine) < 0 || prefill.registerMem(theirs) < 0) return 4;

  // Metadata over the network, and by hand in part.
  nixl_opt_args_t at;
  at.ipAddr = "127.0.0.1";
  at.port = port;
  std::string name;
  nixl_blob_t blob;
  if (decode.fetchRemoteMD("prefill-1", &at) < 0 || decode.sendLocalMD(&at) < 0) return 5;
  while (decode.checkRemoteMD("prefill-1", theirs.trim()) != NIXL_SUCCESS) {
  }
  while (prefill.checkRemoteMD("decode-1", nixl_xfer_dlist_t(DRAM_SEG)) != NIXL_SUCCESS) {
  }
  if (prefill.getLocalPartialMD(theirs, blob) < 0 || decode.loadRemoteMD(blob, name) < 0) return 6;
  if (decode.sendLocalPartialMD(mine, &at) < 0 || decode.makeConnection(name) < 0) return 7;

  // Prepared lists: page 1 here gets page 0 there.
  const size_t half = pages.size() / 2;
  nixl_xfer_dlist_t halves_here(DRAM_SEG);
  nixl_xfer_dlist_t halves_there(DRAM_SEG);
  for (size_t i = 0; i < 2; ++i) {
    halves_here.addDesc(nixlBasicDesc(reinterpret_cast<uintptr_t>(cache.data()) + i * half, half, 0));
    halves_there.addDesc(nixlBasicDesc(reinterpret_cast<uintptr_t>(pages.data()) + i * half, half, 0));
  }
  nixlDlistH* here_list = nullptr;
  nixlDlistH* there_list = nullptr;
  nixlXferReqH* request = nullptr;
  if (decode.prepXferDlist(NIXL_INIT_AGENT, halves_here, here_list) < 0) return 8;
  if (decode.prepXferDlist(name, halves_there, there_list) < 0) return 9;
  if (decode.makeXferReq(NIXL_READ, here_list, {1}, there_list, {0}, request) < 0) return 10;
  std::chrono::microseconds expected{};
  std::chrono::microseconds margin{};
  nixl_cost_t method{};
  nixlBackendH* by = nullptr;
  if (decode.estimateXferCost(request, expected, margin, method) < 0) return 11;
  if (decode.queryXferBackend(request, by) < 0 || by != ucx) return 12;
  nixl_status_t status = decode.postXferReq(request);
  while (status == NIXL_IN_PROG) status = decode.getXferStatus(request);
  nixl_xfer_telem_t figures;
  if (decode.getXferTelemetry(request, figures) < 0 || figures.totalBytes != half) return 13;
  if (decode.releaseXferReq(request) < 0 || decode.releasedDlistH(here_list) < 0) return 14;
  if (decode.releasedDlistH(there_list) < 0 || decode.genNotif(name, "bye") < 0) return 15;
  nixl_notifs_t notifications;
  while (notifications.empty() && prefill.getNotifs(notifications) == NIXL_SUCCESS) {
  }

  // These answer that they are not supported: views for code on a GPU where there is none, and queries of backends without files.
  nixlMemViewH view = nullptr;
  std::vector<nixl_query_resp_t> answers;
  nixl_opt_args_t with;
  with.backends = {ucx};
  if (decode.prepMemView(halves_here, view) != NIXL_ERR_NOT_SUPPORTED) return 16;
  decode.releaseMemView(view);
  if (decode.queryMem(mine, answers, &with) != NIXL_ERR_NOT_SUPPORTED) return 17;

  if (decode.invalidateLocalMD(&at) < 0 || decode.invalidateRemoteMD(name) < 0) return 18;
  return decode.deregisterMem(mine) < 0 ? 19 : status;
}
// [calls]

namespace {

TEST(Migrating, TheExampleWorks) {
  std::vector<char> pages(8192, 'p');
  std::vector<char> cache(8192, '\0');
  EXPECT_EQ(move_two_pages(pages, cache), 0);
  EXPECT_EQ(cache, pages);
}

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

TEST(Migrating, EveryOtherCallWorks) {
  std::vector<char> pages(8192, 'p');
  std::vector<char> cache(8192, '\0');
  EXPECT_EQ(every_other_call(pages, cache, free_port()), 0);
  EXPECT_EQ(std::count(cache.begin() + 4096, cache.end(), 'p'), 4096);
  EXPECT_EQ(std::count(cache.begin(), cache.end(), 'p'), 4096);
}

}  // namespace
