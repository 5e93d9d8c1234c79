// A decode worker in C: one plan for its prefill worker, new pages for each request, and one descriptor in its event loop.
// The prefill worker is a second process, which this program starts.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <towline/layout.h>
#include <towline/plan.h>
#include <towline/towline.h>
#include <unistd.h>

enum { kPages = 64, kPageBytes = 65536, kRequests = 3, kPicked = 4 };

struct request {
  uint32_t number;
  uint32_t pages[kPicked];  // of the prefill worker's cache
};

static void check(int32_t status, const char* what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s\n", what, towline_last_error());
  exit(1);
}

// Memory that the other process can map, registered as "kv": 64 pages of 64 KiB.
static towline_region_t* make_cache(towline_agent_t* agent, uint32_t access, towline_memory_t** memory) {
  towline_layout_t layout = {
      .struct_size = sizeof layout, .element_bytes = kPageBytes, .dimensions = 1, .count = {kPages}};
  towline_region_options_t options = {
      .struct_size = sizeof options, .access = access, .name = "kv", .layout = &layout};
  towline_region_t* region = NULL;
  check(towline_memory_allocate((uint64_t)kPages * kPageBytes, 0, memory), "memory");
  check(towline_region_register(agent, towline_memory_address(*memory), towline_memory_bytes(*memory),
                                &options, &region),
        "register");
  return region;
}

static towline_agent_t* make_agent(const char* name) {
  towline_agent_options_t options = {.struct_size = sizeof options};
  towline_agent_t* agent = NULL;
  check(towline_agent_create(name, &options, &agent), "agent");
  return agent;
}

// The next notice; the caller releases it.
static towline_notice_t next_notice(towline_agent_t* agent) {
  towline_notice_t notice;
  int32_t status;
  while ((status = towline_notice_receive(agent, &notice)) == TOWLINE_AGAIN)
    check(towline_agent_wait(agent, UINT64_C(30000000000)), "no notice came");
  check(status, "receive");
  return notice;
}

// Fills the pages of three requests, tells the worker that said hello, and stays until it has taken the last one.
static int prefill(int address_pipe) {
  towline_agent_t* const agent = make_agent("prefill-0");
  towline_memory_t* memory = NULL;
  towline_region_t* const cache = make_cache(agent, TOWLINE_ACCESS_READ, &memory);
  char address[256];
  check(towline_agent_address(agent, address, sizeof address, NULL), "address");
  if (write(address_pipe, address, strlen(address) + 1) < 0) return 1;

  towline_notice_t hello = next_notice(agent);
  towline_peer_t* decode = NULL;
  check(towline_peer_find(agent, hello.peer_incarnation, &decode), "peer");
  towline_notice_release(agent, &hello);
  for (uint32_t number = 0; number < kRequests; ++number) {
    struct request request = {.number = number};
    for (uint32_t i = 0; i < kPicked; ++i) {
      request.pages[i] = (number * 17 + i * 5) % kPages;
      memset((char*)towline_memory_address(memory) + (size_t)request.pages[i] * kPageBytes,
             (int)(number * 10 + i + 1), kPageBytes);
    }
    check(towline_notice_send(decode, &request, sizeof request), "send");
  }
  for (uint32_t taken = 0; taken < kRequests; ++taken) {
    towline_notice_t notice = next_notice(agent);
    towline_notice_release(agent, &notice);
  }
  towline_peer_release(decode);
  check(towline_region_deregister(cache, TOWLINE_FOREVER), "deregister");
  check(towline_agent_destroy(agent), "close");
  return towline_memory_free(memory);
}

// Posts the plan with the request's pages: the notice goes to the prefill worker when they are here.
static void pull(towline_plan_t* plan, struct request* request) {
  uint32_t mine[kPicked];  // pages from this worker's pool
  for (uint32_t i = 0; i < kPicked; ++i) mine[i] = request->number * kPicked + i;
  towline_post_options_t options = {
      .struct_size = sizeof options,
      .from = {.indices = request->pages, .index_bytes = sizeof *request->pages, .count = kPicked},
      .to = {.indices = mine, .index_bytes = sizeof *mine, .count = kPicked},
      .notice = "taken",
      .notice_bytes = 5,
      .queue_completion = 1,
      .user_data = request,
      // For memory of a GPU: .stream_kind = TOWLINE_STREAM_CUDA, .stream = the stream that the copy comes after.
  };
  int32_t status;
  while ((status = towline_plan_post(plan, &options, NULL)) == TOWLINE_AGAIN) usleep(100);  // no credit yet
  check(status, "post");
}

static int finish(const struct request* request, int32_t status, const char* cache) {
  if (status != TOWLINE_OK) {
    fprintf(stderr, "request %u: %s\n", request->number, towline_status_text(status));
    return 1;
  }
  for (uint32_t i = 0; i < kPicked; ++i) {
    const char* const page = cache + (size_t)(request->number * kPicked + i) * kPageBytes;
    if (page[0] != (char)(request->number * 10 + i + 1) || page[kPageBytes - 1] != page[0]) return 1;
  }
  printf("request %u: %d pages\n", request->number, kPicked);
  return 0;
}

static int decode(const char* address) {
  towline_agent_t* const agent = make_agent("decode-0");
  towline_memory_t* memory = NULL;
  towline_region_t* const cache =
      make_cache(agent, TOWLINE_ACCESS_NONE, &memory);  // filled by this agent's copies only
  towline_peer_t* peer = NULL;
  towline_block_list_t* theirs = NULL;
  towline_block_list_t* mine = NULL;
  towline_plan_t* plan = NULL;
  check(towline_peer_connect(agent, address, UINT64_C(30000000000), &peer), "connect");
  check(towline_peer_region_list(peer, "kv", &theirs), "their cache");
  check(towline_region_list(cache, &mine), "my cache");
  check(towline_plan_create(agent, theirs, mine, NULL, &plan), "plan");
  check(towline_notice_send(peer, "hello", 5), "send");

  int fd = -1;
  check(towline_agent_event_fd(agent, &fd), "descriptor");
  const int loop = epoll_create1(0);
  struct epoll_event in = {.events = EPOLLIN};
  struct request requests[kRequests];
  uint32_t begun = 0;
  uint32_t done = 0;
  int failed = epoll_ctl(loop, EPOLL_CTL_ADD, fd, &in);
  while (failed == 0 && done < kRequests) {
    if (epoll_wait(loop, &in, 1, 30000) < 1) return 1;
    towline_notice_t notice;
    while (towline_notice_receive(agent, &notice) == TOWLINE_OK) {
      if (notice.bytes != sizeof *requests || begun == kRequests) return 1;
      memcpy(&requests[begun], notice.data, notice.bytes);
      towline_notice_release(agent, &notice);
      pull(plan, &requests[begun++]);
    }
    towline_completion_t ended[16];
    const int32_t count = towline_completions_pull(agent, ended, 16);
    for (int32_t i = 0; i < count; ++i, ++done)
      failed += finish(ended[i].user_data, ended[i].status, towline_memory_address(memory));
  }
  close(loop);
  check(towline_plan_destroy(plan, TOWLINE_FOREVER), "plan");
  towline_block_list_destroy(theirs);
  towline_block_list_destroy(mine);
  towline_peer_release(peer);
  check(towline_region_deregister(cache, TOWLINE_FOREVER), "deregister");
  check(towline_agent_destroy(agent), "close");
  towline_memory_free(memory);
  return failed;
}

int main(void) {
  int ends[2];
  char address[256] = "";
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();  // before there is an agent
  if (child == 0) {
    close(ends[0]);
    return prefill(ends[1]);
  }
  close(ends[1]);
  for (size_t at = 0; at < sizeof address && read(ends[0], address + at, 1) == 1 && address[at] != 0;) ++at;
  const int failed = decode(address);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 && failed == 0 ? 0 : 1;
}
