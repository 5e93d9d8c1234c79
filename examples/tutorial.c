// The C of docs/tutorial.md: scripts/tutorial copies the parts between "[name]" and "[end]" to the page.
#define _DEFAULT_SOURCE  // mkdtemp, with -std=c11 too
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <towline/collectives.h>
#include <towline/plan.h>
#include <towline/queue.h>
#include <towline/storage.h>
#include <towline/towline.h>
#include <unistd.h>

enum { kPage = 4096, kPages = 64 };
static const uint64_t kSoon = 10000000000;  // ns

static void need(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "tutorial: %s: %s\n", what, towline_last_error());
  exit(1);
}
// TOWLINE_OK is 0, errors are negative.
static void check(int32_t status, const char* what) { need(status == TOWLINE_OK, what); }

static void own(int pipe) {
  // [own]
  towline_memory_t* cache = NULL;
  check(towline_memory_allocate(kPages * kPage, 0, &cache), "memory");  // that peers can map
  memset(towline_memory_address(cache), 7, kPages * kPage);
  towline_agent_t* agent = NULL;
  check(towline_agent_create("owner", NULL, &agent), "agent");
  const towline_region_options_t readable = {.struct_size = sizeof readable, .access = TOWLINE_ACCESS_READ};
  towline_region_t* region = NULL;
  check(towline_region_register(agent, towline_memory_address(cache), kPages * kPage, &readable, &region),
        "region");
  char address[256];  // "127.0.0.1:43121": send it to the peer by any means
  check(towline_agent_address(agent, address, sizeof address, NULL), "address");
  // [end]
  need(write(pipe, address, sizeof address) == (ssize_t)sizeof address, "no pipe");
  close(pipe);
  // [notice]
  towline_notice_t notice;
  while (towline_notice_receive(agent, &notice, sizeof notice) != TOWLINE_OK)
    towline_agent_wait(agent, kSoon);
  // notice.data is "thanks": every byte was read, so the pages may be reused
  towline_notice_release(agent, &notice);
  // [end]
  check(towline_region_deregister(region, TOWLINE_FOREVER), "deregister");
  check(towline_agent_destroy(agent), "close");
  towline_memory_free(cache);
}

static void save(towline_agent_t* agent, towline_block_list_t* here) {
  char uri[64];
  snprintf(uri, sizeof uri, "file:/tmp/towline-tutorial-c-%d", (int)getpid());
  // [store]
  const towline_storage_options_t created = {
      .struct_size = sizeof created, .flags = TOWLINE_STORAGE_CREATE, .bytes = kPages * kPage};
  towline_region_t* file = NULL;
  check(towline_storage_register(agent, uri, &created, &file), "file");
  const towline_blocks_t pages = {.length = kPage,
                                  .device = towline_region_device(file),
                                  .kind = TOWLINE_MEMORY_FILE,
                                  .dimensions = 1,
                                  .count = {kPages},
                                  .stride = {kPage}};
  towline_block_list_t* stored = NULL;
  towline_plan_t* plan = NULL;
  towline_post_t* post = NULL;
  check(towline_block_list_create(agent, NULL, &pages, sizeof pages, 1, &stored), "pages of the file");
  check(towline_plan_create(agent, here, stored, NULL, &plan), "plan");
  need(towline_plan_post(plan, NULL, &post) >= 0, "post");
  check(towline_post_wait(post, kSoon), "save");
  check(towline_storage_commit(file, kSoon), "commit");  // durable
  // [end]
  struct stat found;
  need(stat(uri + 5, &found) == 0 && found.st_size == kPages * kPage, "the file is short");
  towline_post_release(post);
  check(towline_plan_destroy(plan, TOWLINE_FOREVER), "plan");
  towline_block_list_destroy(stored);
  check(towline_region_deregister(file, TOWLINE_FOREVER), "deregister");
  unlink(uri + 5);
}

static void read_from(const char* address) {
  // [move]
  towline_agent_t* agent = NULL;
  towline_memory_t* memory = NULL;
  towline_region_t* mine = NULL;
  towline_peer_t* peer = NULL;
  check(towline_agent_create("reader", NULL, &agent), "agent");
  check(towline_memory_allocate(kPages * kPage, 0, &memory), "memory");
  check(towline_region_register(agent, towline_memory_address(memory), kPages * kPage, NULL, &mine),
        "region");
  check(towline_peer_connect(agent, address, TOWLINE_DEFAULT_TIMEOUT, &peer), "connect");
  towline_region_info_t theirs;
  size_t regions = 1;
  check(towline_peer_regions(peer, &theirs, sizeof theirs, &regions), "regions");

  towline_blocks_t pages = {.address = (uintptr_t)towline_memory_address(memory),
                            .length = kPage,
                            .dimensions = 1,
                            .count = {kPages},
                            .stride = {kPage}};
  towline_block_list_t* here = NULL;
  towline_block_list_t* there = NULL;
  check(towline_block_list_create(agent, NULL, &pages, sizeof pages, 1, &here), "my pages");
  pages.address = theirs.address;
  check(towline_block_list_create(agent, peer, &pages, sizeof pages, 1, &there), "their pages");
  // [end]
  // [plan]
  towline_plan_t* plan = NULL;
  check(towline_plan_create(agent, there, here, NULL, &plan),
        "plan");  // once for each peer and pair of lists
  const uint32_t from[] = {40, 7};
  const uint32_t to[] = {0, 1};
  const towline_post_options_t request = {.struct_size = sizeof request,
                                          .from = {.indices = from, .index_bytes = 4, .count = 2},
                                          .to = {.indices = to, .index_bytes = 4, .count = 2}};
  towline_post_t* post = NULL;
  need(towline_plan_post(plan, &request, &post) >= 0, "post");  // for each request
  check(towline_post_wait(post, kSoon), "read");                // TOWLINE_NOT_YET: it goes on
  towline_post_release(post);
  // [end]
  const char* const bytes = towline_memory_address(memory);
  need(bytes[kPage] == 7 && bytes[2 * kPage] == 0, "wrong bytes");
  // [wait]
  towline_queue_t* queue = NULL;
  check(towline_queue_create(agent, NULL, &queue), "queue");
  int requests = 0;
  const towline_post_options_t queued = {
      .struct_size = sizeof queued, .queue = queue, .user_data = &requests};
  for (int i = 0; i < 3; ++i) need(towline_plan_post(plan, &queued, NULL) >= 0, "post");
  while (requests < 3) {
    towline_queue_wait(queue,
                       TOWLINE_FOREVER);  // or: give the descriptor of towline_queue_fd to your event loop
    towline_event_t events[16];
    const int32_t count = towline_queue_next(queue, events, 16, sizeof *events);
    for (int32_t i = 0; i < count; ++i) {
      if (events[i].status == TOWLINE_OK) ++*(int*)events[i].user_data;
      towline_event_release(&events[i]);
    }
  }
  // [end]
  check(towline_notice_send(peer, "thanks", 6), "notice");
  save(agent, here);
  towline_queue_release(queue);
  check(towline_plan_destroy(plan, TOWLINE_FOREVER), "plan");
  towline_block_list_destroy(there);
  towline_block_list_destroy(here);
  towline_peer_release(peer);
  check(towline_region_deregister(mine, TOWLINE_FOREVER), "deregister");
  check(towline_agent_destroy(agent), "close");
  towline_memory_free(memory);
}

struct rank {
  int number;
  char meeting[64];
};

static void* add_up(void* given) {
  const struct rank* const rank = given;
  // [collect]
  const towline_communicator_options_t options = {
      .struct_size = sizeof options,
      .rank = rank->number,  // without rank and size: from torchrun, MPI or Slurm
      .size = 2,
      .bootstrap = rank->meeting,  // "file:" and a folder that every rank can reach
  };
  towline_communicator_t* world = NULL;
  check(towline_communicator_create(&options, &world), "communicator");
  float values[4] = {rank->number + 1.0f, rank->number + 1.0f, rank->number + 1.0f, rank->number + 1.0f};
  // {3, 3, 3, 3} on both ranks
  check(towline_all_reduce(world, values, values, 4, TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, NULL, NULL),
        "all_reduce");
  // [end]
  need(values[0] == 3 && values[3] == 3, "wrong sum");
  check(towline_communicator_destroy(world), "close");
  return NULL;
}

static void collect(void) {
  struct rank ranks[2] = {{.number = 0, .meeting = "file:/tmp/towline-tutorial-c-XXXXXX"}, {.number = 1}};
  need(mkdtemp(ranks[0].meeting + 5) != NULL, "no folder");
  memcpy(ranks[1].meeting, ranks[0].meeting, sizeof ranks[1].meeting);
  pthread_t other;
  need(pthread_create(&other, NULL, add_up, &ranks[1]) == 0, "no thread");
  add_up(&ranks[0]);
  pthread_join(other, NULL);
  char remove[96];
  snprintf(remove, sizeof remove, "rm -r %s", ranks[0].meeting + 5);
  need(system(remove) == 0, "the folder stays");
}

int main(void) {
  int ends[2];
  need(pipe(ends) == 0, "no pipe");
  const pid_t child = fork();  // before any agent exists: agents do not cross a fork
  if (child == 0) {
    own(ends[1]);
    return 0;
  }
  close(ends[1]);
  char address[256] = "";
  need(read(ends[0], address, sizeof address) == (ssize_t)sizeof address, "no address");
  read_from(address);
  int status = 0;
  waitpid(child, &status, 0);
  need(status == 0, "the owner failed");
  collect();
  return 0;
}
