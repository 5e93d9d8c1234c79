// The example of docs/migrating-from-nixl.md, which quotes the part between the marks.
#include <gtest/gtest.h>

#include <cstring>
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

namespace {

TEST(Migrating, TheExampleWorks) {
  std::vector<char> pages(8192, 'p');
  std::vector<char> cache(8192, '\0');
  EXPECT_EQ(move_two_pages(pages, cache), 0);
  EXPECT_EQ(cache, pages);
}

}  // namespace
