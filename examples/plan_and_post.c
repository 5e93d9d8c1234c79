// A decode worker in C: one plan for its prefill worker, new pages for each request, and one event queue in its loop.
// The prefill worker is a second process, which this program starts.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <towline/layout.h>
#include <towline/queue.h>
#include <unistd.h>

enum { kPages = 64, kPageBytes = 65536, kRequests = 3, kPicked = 4 };
enum { kHello = 1, kReady = 2, kTaken = 3 };  // tags of notices

struct request {
  uint32_t number;
  uint32_t pages[kPicked];  // of the prefill worker's cache
};

struct worker {
  towline_agent_t* agent;
  towline_memory_t* memory;
  towline_region_t* cache;
  towline_queue_t* queue;
  int epoll;
};

static void check(int32_t status, const char* what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s\n", what, towline_last_error());
  exit(1);
}

// An agent with memory that the other process can map, registered as "kv": 64 pages of 64 KiB. Its queue takes every
// notice.
static struct worker start(const char* name, uint32_t access) {
  struct worker worker = {.epoll = epoll_create1(0)};
  TOWLINE_INIT(towline_agent_options_t, agent_options);
  check(towline_agent_create(name, &agent_options, &worker.agent), "agent");

  towline_layout_t layout = {
      .struct_size = sizeof layout, .element_bytes = kPageBytes, .dimensions = 1, .count = {kPages}};
  towline_region_options_t options = {
      .struct_size = sizeof options, .access = access, .name = "kv", .layout = &layout};
  check(towline_memory_allocate((uint64_t)kPages * kPageBytes, 0, &worker.memory), "memory");
  check(towline_region_register(worker.agent, towline_memory_address(worker.memory),
                                towline_memory_bytes(worker.memory), &options, &worker.cache),
        "register");

  int fd = -1;
  check(towline_queue_create(worker.agent, NULL, &worker.queue), "queue");
  check(towline_queue_subscribe(worker.queue, 0, 0), "subscribe");
  check(towline_queue_fd(worker.queue, &fd), "descriptor");
  struct epoll_event in = {.events = EPOLLIN};
  if (worker.epoll < 0 || epoll_ctl(worker.epoll, EPOLL_CTL_ADD, fd, &in) != 0) exit(1);
  return worker;
}

static void stop(struct worker* worker) {
  close(worker->epoll);
  towline_queue_release(worker->queue);
  check(towline_region_deregister(worker->cache, TOWLINE_FOREVER), "deregister");
  check(towline_agent_destroy(worker->agent), "close");
  towline_memory_free(worker->memory);
}

// Returns events, at least one; the caller releases them.
static int32_t next_events(const struct worker* worker, towline_event_t* events, size_t capacity) {
  for (;;) {
    const int32_t count = towline_queue_next(worker->queue, events, capacity, sizeof *events);
    check(count, "queue");
    if (count > 0) return count;
    struct epoll_event in;
    if (epoll_wait(worker->epoll, &in, 1, 30000) == 1) continue;
    fprintf(stderr, "nothing has happened for 30 s\n");
    exit(1);
  }
}

// ---- prefill

// Stands for a model: fills pages, and says which.
static void serve(const struct worker* worker, towline_peer_t* decode) {
  char* const cache = towline_memory_address(worker->memory);
  for (uint32_t number = 0; number < kRequests; ++number) {
    struct request request = {.number = number};
    for (uint32_t i = 0; i < kPicked; ++i) {
      request.pages[i] = (number * 17 + i * 5) % kPages;
      memset(cache + (size_t)request.pages[i] * kPageBytes, (int)(number * 10 + i + 1), kPageBytes);
    }
    check(towline_notice_send_tagged(decode, kReady, &request, sizeof request), "send");
  }
}

// Stays until the decode worker has taken the last request.
static int prefill(int address_pipe) {
  struct worker worker = start("prefill-0", TOWLINE_ACCESS_READ);
  char address[256];
  check(towline_agent_address(worker.agent, address, sizeof address, NULL), "address");
  if (write(address_pipe, address, strlen(address) + 1) < 0) return 1;
  for (uint32_t taken = 0; taken < kRequests;) {
    towline_event_t events[16];
    const int32_t count = next_events(&worker, events, 16);
    for (int32_t i = 0; i < count; ++i) {
      if (events[i].tag == kTaken) ++taken;
      if (events[i].tag == kHello) {
        towline_peer_t* decode = NULL;
        check(towline_event_peer(&events[i], &decode), "peer");
        serve(&worker, decode);
        towline_peer_release(decode);
      }
      towline_event_release(&events[i]);
    }
  }
  stop(&worker);
  return 0;
}

// ---- decode

// Posts the plan with the request's pages: the notice goes to the prefill worker when they are here. Without credit for
// that, the queue says when to try again.
static void pull(const struct worker* worker, towline_plan_t* plan, towline_peer_t* peer,
                 struct request* request) {
  uint32_t mine[kPicked];  // pages from this worker's pool
  for (uint32_t i = 0; i < kPicked; ++i) mine[i] = request->number * kPicked + i;
  const towline_post_options_t options = {
      .struct_size = sizeof options,
      .from = {.indices = request->pages, .index_bytes = sizeof *request->pages, .count = kPicked},
      .to = {.indices = mine, .index_bytes = sizeof *mine, .count = kPicked},
      .notice = "taken",
      .notice_bytes = 5,
      .tag = kTaken,
      .queue = worker->queue,
      .user_data = request,
      // For memory of a GPU: .stream_kind = TOWLINE_STREAM_CUDA, .stream = the stream that the copy comes after.
  };
  const int32_t status = towline_plan_post(plan, &options, NULL);
  if (status == TOWLINE_AGAIN)
    check(towline_peer_credit_async(peer, worker->queue, request), "credit");
  else
    check(status, "post");
}

static int finish(const towline_event_t* done, const char* cache) {
  const struct request* const request = done->user_data;
  if (done->status != TOWLINE_OK) {
    fprintf(stderr, "request %u: %s\n", request->number, towline_event_error(done));
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
  struct worker worker = start("decode-0", TOWLINE_ACCESS_NONE);  // filled by this agent's copies only
  towline_peer_t* peer = NULL;
  towline_block_list_t* theirs = NULL;
  towline_block_list_t* mine = NULL;
  towline_plan_t* plan = NULL;
  check(towline_peer_connect(worker.agent, address, TOWLINE_DEFAULT_TIMEOUT, &peer), "connect");
  check(towline_peer_region_list(peer, "kv", &theirs), "their cache");
  check(towline_region_list(worker.cache, &mine), "my cache");
  check(towline_plan_create(worker.agent, theirs, mine, NULL, &plan), "plan");
  check(towline_notice_send_tagged(peer, kHello, NULL, 0), "send");

  struct request requests[kRequests];
  uint32_t begun = 0;
  int failed = 0;
  for (uint32_t done = 0; done < kRequests;) {
    towline_event_t events[16];
    const int32_t count = next_events(&worker, events, 16);
    for (int32_t i = 0; i < count; ++i) {
      towline_event_t* const event = &events[i];
      switch (event->kind) {
        case TOWLINE_EVENT_NOTICE:
          if (event->bytes != sizeof *requests || begun == kRequests) return 1;
          memcpy(&requests[begun], event->data, event->bytes);
          pull(&worker, plan, peer, &requests[begun++]);
          break;
        case TOWLINE_EVENT_DONE:
          failed += finish(event, towline_memory_address(worker.memory));
          ++done;
          break;
        case TOWLINE_EVENT_CREDIT:
          pull(&worker, plan, peer, event->user_data);
          break;
      }
      towline_event_release(event);
    }
  }
  check(towline_plan_destroy(plan, TOWLINE_FOREVER), "plan");
  towline_block_list_destroy(theirs);
  towline_block_list_destroy(mine);
  towline_peer_release(peer);
  stop(&worker);
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
